"""Tests compile many programs and run each for milliseconds.

With most optimizations disabled, programs that XLA fuses in its older way compile in 0.4 of the time; as one LLVM
module each, and not as up to 32, large ones in 0.7 of that; with loops as they are written, in 0.9 of that. Loading a
program that was kept in a folder takes a fifth; keeping those of less than 50 ms costs more than it saves.
"""

import contextlib
import functools
import os
import pathlib
import threading
import time

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lax import lax

try:
    from jax._src.literals import TypedNdArray
    from jax._src.lru_cache import LRUCache
except ImportError:  # where JAX has moved one, programs are kept as JAX keeps them, and arrays take programs
    LRUCache = TypedNdArray = None

# Later versions have the newer way alone.
_KNOWN_BEFORE = (0, 11)
_OPTIONS = [("xla_cpu_use_fusion_emitters", False), ("xla_cpu_parallel_codegen_split_count", 1)]
# They move what does not change out of loops, and each move lets all others run again: a tenth of a program's time.
_OPTIONS += [("xla_disable_hlo_passes", "while-loop-invariant-code-motion,simplify-while-loops")]
_KEPT_SECONDS = 7 * 24 * 3600


def install() -> None:
    """Makes XLA fuse unoptimized CPU programs in its older way from now on.

    JAX has no public setting for the options of all programs; where it has moved the private one, tests are slower.
    """
    options_of = getattr(compiler, "get_compile_options", None)
    if options_of is None or jax.__version_info__ >= _KNOWN_BEFORE:
        return

    @functools.wraps(options_of)
    def fused_in_the_older_way(*args, **kwargs):
        options = options_of(*args, **kwargs)
        backend = kwargs.get("backend")
        level = options.executable_build_options.debug_options.xla_backend_optimization_level
        if level == 0 and backend is not None and backend.platform == "cpu":
            options.env_option_overrides = [*options.env_option_overrides, *_OPTIONS]
        return options

    compiler.get_compile_options = fused_in_the_older_way


def share_contexts() -> None:
    """From now on all programs of a thread are lowered in one MLIR context.

    Like `install`, this sets a private function of JAX; where it has moved, tests are slower.
    """
    if (make := getattr(mlir, "make_ir_context", None)) is None:
        return
    threads = threading.local()

    @functools.wraps(make)
    def one_for_each_thread():
        if not hasattr(threads, "context"):
            threads.context = make()
        return threads.context

    mlir.make_ir_context = one_for_each_thread


def make_arrays_on_the_host() -> None:
    """From now on NumPy arrays and filled arrays become JAX arrays without a program for each shape.

    JAX compiles an identity for an array of the host, and a broadcast for `jnp.zeros`: 12 ms each, a quarter of all
    programs of the tests. Like `install`, this sets private functions of JAX; where it has moved, tests are slower.
    """
    if TypedNdArray is None:
        return
    for name, made in (("stage_p", _same), ("convert_element_type_p", _converted), ("broadcast_in_dim_p", _filled)):
        if (primitive := getattr(lax, name, None)) is not None:
            primitive.def_impl(_without_a_program(primitive.impl, made))


def _without_a_program(compiled, made):
    def make(x, *dynamic, **options):
        values = None
        in_a_mesh = options.get("sharding") is not None or not jax.sharding.get_abstract_mesh().empty
        if _is_of_the_host(x) and not dynamic and not in_a_mesh:
            values = made(np.asarray(x), jax.typeof(x).dtype, options)
        if values is None:
            return compiled(x, *dynamic, **options)
        weak = options.get("weak_type", jax.typeof(x).weak_type)
        aval = jax.core.ShapedArray(values.shape, values.dtype, weak_type=weak)
        return jax.device_put(TypedNdArray(values, aval=aval))

    return make


def _is_of_the_host(x) -> bool:
    """Whether these are NumPy's numbers, or a JAX scalar to fill with that is bound to no device."""
    scalar = isinstance(x, jax.Array) and not x.ndim and not x.committed and isinstance(x.dtype, np.dtype)
    return scalar or isinstance(x, np.ndarray)


def _same(x, dtype, options):
    return np.array(x, dtype)  # a copy, which nobody changes


def _converted(x, dtype, options):
    """Conversions that NumPy and XLA make alike: between integers, and to the same type."""
    new = np.dtype(options["new_dtype"])
    alike = dtype == new or (dtype.kind in "iub" and new.kind in "iu")
    return np.array(x, dtype).astype(new) if alike else None


def _filled(x, dtype, options):
    return None if x.ndim else np.full(options["shape"], x, dtype)


def keep(folder: pathlib.Path) -> None:
    """Keeps compiled programs in a folder from now on, keyed by all that they depend on, for this and other processes.

    The folder is `$JAX_COMPILATION_CACHE_DIR` where that is set. JAX keeps no program that calls back into Python.
    Programs that no run has used for a week are removed.
    """
    folder = pathlib.Path(jax.config.jax_compilation_cache_dir or folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if LRUCache is not None:
        LRUCache.put = _put
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):  # another process was faster
            status = path.stat()
            if max(status.st_atime, status.st_mtime) < time.time() - _KEPT_SECONDS:
                path.unlink()


def _put(cache, key: str, value: bytes) -> None:
    """Stores a program by a rename: JAX writes it in place, and another process might read half of it."""
    path = cache.path / f"{key}-cache"
    if not path.exists():
        partial = cache.path / f"partial-{os.getpid()}-{threading.get_ident()}"
        partial.write_bytes(value)
        os.replace(partial, path)
