"""Compiles the native kernels for this machine, once, and registers them with XLA."""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from jaxspec.core.cache_root import cache_root
from jaxspec.ops.native.compiler import NoCompilerError as NoCompilerError
from jaxspec.ops.native.compiler import find_compiler, run_compiler
from jaxspec.ops.native.library import load

# The names of the kernels' handlers.
PRODUCT, ATTENTION = "JaxspecProduct", "JaxspecAttention"
STORED_PRODUCT, STORED_ROWS = "JaxspecStoredProduct", "JaxspecStoredRows"
_HANDLERS = (PRODUCT, ATTENTION, STORED_PRODUCT, STORED_ROWS)
# Its functions, and what they return.
_FUNCTIONS = {"JaxspecPack": ctypes.c_int64, "JaxspecTileBytes": ctypes.c_int64, "JaxspecLanes": ctypes.c_int64}
_HERE = Path(__file__).parent
_SOURCES = tuple(sorted(_HERE.glob("*.cpp")))
_HEADERS = tuple(sorted(_HERE.rglob("*.h")))
_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-w", "-fPIC")


@functools.cache
def register() -> ctypes.CDLL:
    """Registers the kernels with XLA by their names, and compiles them first if this machine has not yet.

    The compiler is `$CXX`, or the first of c++, g++ and clang++ on the path. The library is kept in `$JAXSPEC_CACHE`,
    by default the user's cache folder, for these sources, `$CXX`, processor and version of jaxlib; where it is there,
    no compiler is needed. One that is not as it was compiled is compiled again, with one line that says so.

    Returns:
      The library.

    Raises:
      NoCompilerError: there is no compiler, or it failed; the message has its output.
      OSError: the cache folder cannot be written, or no space is left.
    """
    library = load(cache_root() / "native", _digest(), (*_HANDLERS, *_FUNCTIONS), _compile)
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    for name, result in _FUNCTIONS.items():
        getattr(library, name).restype = result
    return library


def _compile(path: Path) -> None:
    """Compiles the sources at the same time, and links them."""
    command, folder = find_compiler(), path.parent
    objects = [folder / f"{source.stem}.o" for source in _SOURCES]

    def one(source: Path, to: Path) -> None:
        run_compiler([*command, *_OPTIONS, f"-I{jax.ffi.include_dir()}", "-c", str(source), "-o", str(to)], folder)

    with ThreadPoolExecutor(len(_SOURCES)) as pool:
        list(pool.map(one, _SOURCES, objects))
    run_compiler([*command, "-shared", *map(str, objects), "-o", str(path)], folder)


def _digest() -> str:
    """Hashes everything that the library depends on: a cache folder may be shared by unlike machines.

    Of the compiler that is the command alone: its version could be had only where there is one.
    """
    sources = [path.read_bytes() for path in (*_SOURCES, *_HEADERS)]
    parts = (sources, _OPTIONS, importlib.metadata.version("jaxlib"), os.environ.get("CXX", ""), _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Describes the processor by what `-march=native` depends on."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return f"{platform.machine()} {platform.processor()}"
    fields = ("model name", "flags", "Features", "CPU part")
    lines = {line for line in path.read_text().splitlines() if line.startswith(fields)}
    return f"{platform.machine()} {sorted(lines)}"
