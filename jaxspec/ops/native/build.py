"""Registers the native kernels with XLA: compiled for this machine, once, or as the release wheel carries them."""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from jaxspec.core.cache_root import cache_root
from jaxspec.ops.native.compiler import NoCompilerError as NoCompilerError
from jaxspec.ops.native.compiler import find_compiler, run_compiler
from jaxspec.ops.native.library import RefusedError, load
from jaxspec.ops.native.prebuilt import Prebuilt, find_prebuilt, load_prebuilt

# The names of the kernels' handlers.
PRODUCT, ATTENTION = "JaxspecProduct", "JaxspecAttention"
STORED_PRODUCT, STORED_ROWS = "JaxspecStoredProduct", "JaxspecStoredRows"
_HANDLERS = (PRODUCT, ATTENTION, STORED_PRODUCT, STORED_ROWS)
# Its functions, and what they return.
_FUNCTIONS = {"JaxspecPack": ctypes.c_int64, "JaxspecTileBytes": ctypes.c_int64, "JaxspecLanes": ctypes.c_int64}
_HERE = Path(__file__).parent
_SOURCES = tuple(sorted(_HERE.glob("*.cpp")))
_HEADERS = tuple(sorted(_HERE.rglob("*.h")))
COMMON_OPTIONS = ("-std=c++17", "-O3", "-w", "-fPIC")  # what is compiled anywhere
_OPTIONS = (*COMMON_OPTIONS, "-march=native")


@functools.cache
def register() -> ctypes.CDLL:
    """Registers the kernels with XLA by their names, from the first library of these that can be had.

    1. One that was compiled on this machine. It is kept in `$JAXSPEC_CACHE`, by default the user's cache folder, for
       these sources, `$CXX`, processor and version of jaxlib. One that is not as it was compiled is compiled again,
       with one line that says so.
    2. One that the release wheel carries, if compiling would give no wider vectors and no other byte products: it is
       there at once, and compiling takes seconds.
    3. One that is compiled now, by `$CXX`, or the first of c++, g++ and clang++ on the path.
    4. The best that the release wheel carries for this processor, with one line that says so.

    Returns:
      The library.

    Raises:
      NoCompilerError: none is carried, and there is no compiler, or it failed; the message has its output.
      OSError: none is carried, and the cache folder cannot be written, or no space is left.
    """
    symbols = (*_HANDLERS, *_FUNCTIONS)
    carried = functools.cache(lambda: find_prebuilt(sources_digest()))
    try:
        best = functools.partial(_load_prebuilt, carried, symbols, best=True)
        library = load(cache_root() / "native", _digest(), symbols, _compile, instead=best)
    except (NoCompilerError, OSError) as error:
        other = _load_prebuilt(carried, symbols, best=False)
        if other is None:
            raise
        print(f"jaxspec: the prebuilt kernels {other._name} are used, as none were compiled: {error}", file=sys.stderr)
        library = other
    _publish(library)
    for name, result in _FUNCTIONS.items():
        getattr(library, name).restype = result
    return library


def _load_prebuilt(carried: Callable[[], list[Prebuilt]], symbols: Sequence[str], *, best: bool) -> ctypes.CDLL | None:
    return load_prebuilt(carried(), symbols, _try_publishing, best=best)


def _try_publishing(library: ctypes.CDLL) -> None:
    """Registers a library's handlers, if XLA takes those of its version of the foreign function interface.

    XLA looks at the version when the CPU backend starts, and a handler that it does not take then ends the backend. It
    takes versions from one that it supports yet to its own; which is the oldest, no header says.

    Raises:
      RefusedError: XLA does not take them, or there is no CPU backend.
    """
    try:
        jax.devices("cpu")
        _publish(library)
    except RuntimeError as error:
        raise RefusedError(str(error)) from error


def _publish(library: ctypes.CDLL) -> None:
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")


def _compile(path: Path) -> None:
    compile_kernels(path, find_compiler(), _OPTIONS)


def compile_kernels(path: Path, command: Sequence[str], options: Sequence[str], more: Sequence[Path] = ()) -> None:
    """Compiles the sources, all at the same time, and links them.

    Args:
      path: the library; what is compiled on the way lies beside it.
      command: the compiler.
      options: its options.
      more: other sources.

    Raises:
      NoCompilerError: it failed.
      OSError: no space is left.
    """
    folder, sources = path.parent, (*_SOURCES, *more)
    objects = [folder / f"{source.stem}.o" for source in sources]

    def one(source: Path, to: Path) -> None:
        run_compiler([*command, *options, f"-I{jax.ffi.include_dir()}", "-c", str(source), "-o", str(to)], folder)

    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(one, sources, objects))
    run_compiler([*command, "-shared", *map(str, objects), "-o", str(path)], folder)


def sources_digest() -> str:
    """Returns the SHA-256 of the sources."""
    return hashlib.sha256(repr([path.read_bytes() for path in (*_SOURCES, *_HEADERS)]).encode()).hexdigest()


def _digest() -> str:
    """Hashes everything that the library depends on: a cache folder may be shared by unlike machines.

    Of the compiler that is the command alone: its version could be had only where there is one.
    """
    jaxlib, compiler = importlib.metadata.version("jaxlib"), os.environ.get("CXX", "")
    parts = (sources_digest(), _OPTIONS, jaxlib, compiler, _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Describes the processor by what `-march=native` depends on."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return f"{platform.machine()} {platform.processor()}"
    fields = ("model name", "flags", "Features", "CPU part")
    lines = {line for line in path.read_text().splitlines() if line.startswith(fields)}
    return f"{platform.machine()} {sorted(lines)}"
