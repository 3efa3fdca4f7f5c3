"""Compiles the native kernels for this machine, once, and registers them with XLA."""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import platformdirs

# The names of the kernels' handlers.
PRODUCT, ATTENTION = "JaxspecProduct", "JaxspecAttention"
_HERE = Path(__file__).parent
_SOURCES, _HEADERS = (_HERE / "product.cpp", _HERE / "attention.cpp"), (_HERE / "lanes.h", _HERE / "block.h")
_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-w", "-shared", "-fPIC")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300


class NoCompilerError(RuntimeError):
    """Signals that no C++ compiler was found, or that it did not compile the kernels."""


@functools.cache
def register() -> None:
    """Registers the kernels with XLA by their names, and compiles them first if this machine has not yet.

    The compiler is `$CXX`, or the first of c++, g++ and clang++ on the path. The library is kept in `$JAXSPEC_CACHE`,
    by default the user's cache folder, for these sources, compiler, processor and version of jaxlib.

    Raises:
      NoCompilerError: there is no compiler, or it failed; the message has its output.
      OSError: the cache folder cannot be written.
    """
    library = ctypes.cdll.LoadLibrary(str(_compiled()))
    for name in (PRODUCT, ATTENTION):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")


def _compiled() -> Path:
    compiler = _compiler()
    root = os.environ.get("JAXSPEC_CACHE") or platformdirs.user_cache_dir("jaxspec")
    path = Path(root) / "native" / f"kernels-{_digest(compiler)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            _run([*compiler, *_OPTIONS, f"-I{jax.ffi.include_dir()}", *map(str, _SOURCES), "-o", str(made)])
            os.replace(made, path)
    return path


def _compiler() -> list[str]:
    """Returns the compiler's command."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in _COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NoCompilerError(
        f"no C++ compiler: none of {', '.join(_COMPILERS)} is on the path; install one, or set CXX to its command"
    )


def _digest(compiler: list[str]) -> str:
    """Hashes everything that the library depends on: a cache folder may be shared by unlike machines."""
    sources = [path.read_bytes() for path in (*_SOURCES, *_HEADERS)]
    parts = (
        sources,
        _OPTIONS,
        importlib.metadata.version("jaxlib"),
        compiler,
        _run([*compiler, "--version"]),
        _processor(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Describes the processor by what `-march=native` depends on."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return f"{platform.machine()} {platform.processor()}"
    fields = ("model name", "flags", "Features", "CPU part")
    lines = {line for line in path.read_text().splitlines() if line.startswith(fields)}
    return f"{platform.machine()} {sorted(lines)}"


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(f"{shlex.join(command)} did not run: {error}") from error
    if done.returncode != 0:
        raise NoCompilerError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
