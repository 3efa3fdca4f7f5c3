"""Registers the native kernels with XLA: compiled once for this machine, or prebuilt in the release wheel."""

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from jaxspec.core.native_sampling import DRAW, DRAW_NEXT, EXCESS, LOG_SUM_EXP, WARP
from jaxspec.io.cache import cache_root
from jaxspec.ops.native.library import (
    NoCompilerError as NoCompilerError,
    RefusedError,
    find_compiler,
    load,
    run_compiler,
)
from jaxspec.ops.native.prebuilt import Prebuilt, find_prebuilt, load_prebuilt

_logger = logging.getLogger(__name__)

# The names of the kernels' handlers.
PRODUCT, ATTENTION = "JaxspecProduct", "JaxspecAttention"
STORED_PRODUCT, STORED_ROWS = "JaxspecStoredProduct", "JaxspecStoredRows"
PRODUCT_BY_EXPERT, STORED_PRODUCT_BY_EXPERT = "JaxspecProductByExpert", "JaxspecStoredProductByExpert"
_PRODUCTS = (PRODUCT, STORED_PRODUCT, STORED_ROWS, PRODUCT_BY_EXPERT, STORED_PRODUCT_BY_EXPERT)
_HANDLERS = (*_PRODUCTS, ATTENTION, WARP, LOG_SUM_EXP, DRAW, DRAW_NEXT, EXCESS)
# The library's functions, and their return types.
_FUNCTIONS = {"JaxspecPack": ctypes.c_int64, "JaxspecTileBytes": ctypes.c_int64, "JaxspecLanes": ctypes.c_int64}
_HERE = Path(__file__).parent
_SOURCES = tuple(sorted(_HERE.glob("*.cpp")))
_HEADERS = tuple(sorted(_HERE.rglob("*.h")))
COMMON_OPTIONS = ("-std=c++17", "-O3", "-w", "-fPIC")  # on every machine
_OPTIONS = (*COMMON_OPTIONS, "-march=native")


@functools.cache
def register() -> ctypes.CDLL:
    """Registers the kernels with XLA by name, from the first available library of these.

    1. A library compiled on this machine, kept in `$JAXSPEC_CACHE`, by default the user's cache folder, for these
       sources, `$CXX`, processor and version of jaxlib. A damaged one is compiled again, with one line in the log.
    2. A library in the release wheel, if compiling would give no wider vectors and no other byte products: it needs no
       seconds of compilation.
    3. A library compiled now, by `$CXX`, or the first of c++, g++ and clang++ on the path.
    4. The best library in the release wheel for this processor, with one line in the log.

    Returns:
      The library.

    Raises:
      NoCompilerError: the wheel has none, and there is no compiler, or it failed; the message has its output.
      OSError: the wheel has none, and the cache folder cannot be written, or no space is left.
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
        _logger.warning("using the prebuilt kernels %s, because compiling failed: %s", other._name, error)
        library = other
    _publish(library)
    for name, result in _FUNCTIONS.items():
        getattr(library, name).restype = result
    return library


def find_kernels() -> str:
    """Describes where `register` would take the kernels from, without compiling or loading them."""
    with contextlib.suppress(OSError):  # no cache without a home folder
        kept = sorted((cache_root() / "native").glob(f"kernels-{_digest()}-*.so"))
        if kept:
            return f"compiled here: {kept[0]}"
    carried = find_prebuilt(sources_digest())
    if carried and carried[0].is_best:
        return f"prebuilt: {carried[0].path.name}"
    try:
        return f"not compiled yet; the compiler is {shlex.join(find_compiler())}"
    except NoCompilerError as error:
        return f"prebuilt: {carried[0].path.name}" if carried else f"none: {error}"


def _load_prebuilt(carried: Callable[[], list[Prebuilt]], symbols: Sequence[str], *, best: bool) -> ctypes.CDLL | None:
    return load_prebuilt(carried(), symbols, _try_publishing, best=best)


def _try_publishing(library: ctypes.CDLL) -> None:
    """Registers a library's handlers, if XLA accepts its version of the foreign function interface.

    XLA checks the version when the CPU backend starts, and fails to start with a handler that it rejects. It accepts a
    range of versions up to its own, whose oldest is in no header.

    Raises:
      RefusedError: XLA rejects them, or there is no CPU backend.
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
    """Compiles the sources in parallel, and links them.

    Args:
      path: the library to write; object files are written next to it.
      command: the compiler's command.
      options: the compiler's options.
      more: further sources.

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
    """Hashes everything that the library depends on: different machines may share a cache folder.

    Only the compiler's command counts: without a compiler, its version is not known.
    """
    jaxlib, compiler = importlib.metadata.version("jaxlib"), os.environ.get("CXX", "")
    parts = (sources_digest(), _OPTIONS, jaxlib, compiler, _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Describes the processor by the properties that `-march=native` depends on."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return f"{platform.machine()} {platform.processor()}"
    fields = ("model name", "flags", "Features", "CPU part")
    lines = {line for line in path.read_text().splitlines() if line.startswith(fields)}
    return f"{platform.machine()} {sorted(lines)}"
