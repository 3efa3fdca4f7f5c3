"""Keeps the programs of `generate`, `stream` and the text interface on disk between processes."""

import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Hashable
from pathlib import Path

import jax

from jaxspec.core.program_files import ProgramFiles
from jaxspec.core.programs import PROGRAMS
from jaxspec.core.typed import typed
from jaxspec.io.cache import cache_root
from jaxspec.io.files import as_path
from jaxspec.io.private_folder import PrivateFolder
from jaxspec.ops.native.build import find_kernels, register
from jaxspec.ops.native.library import NoCompilerError
from jaxspec.ops.native.prebuilt import this_processor

# Packages whose code or numbers a trace contains.
_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "ml_dtypes")
# Variables of the environment that compilers read, and those that change no program.
_READ_BY_COMPILERS = ("JAX", "XLA", "LIBTPU", "TF_", "CUDA", "NVIDIA", "OMP_")
_SWITCH = "JAXSPEC_PROGRAM_CACHE"
_IDLE_VARIABLES = ("JAXSPEC_CACHE", "JAX_COMPILATION_CACHE_DIR", _SWITCH)
_SOURCES = (".py", ".json", ".cpp", ".h")
# The prompt's program, and that of the rounds.
_IN_A_COMMAND = 2
_MAX_BYTES = 2 * 10**9


@typed(max_bytes=(0, 2**63))
def use_program_cache(folder: str | os.PathLike[str] | None = None, *, max_bytes: int = _MAX_BYTES) -> Path:
    """Keeps compiled programs on disk, where later processes find them without tracing or compiling.

    Call it once, before the first call of `generate`. A program is found by everything that it depends on: the sources
    of this package, versions, settings of JAX, the processor, and the structure and types of all arguments. Where they
    include a class or function that is not of jaxspec, flax or JAX, programs are traced, and so are those on
    several devices. Patched functions of jaxspec go unnoticed.

    Reading a program runs its code, so the folder must belong to this user, with mode 0700; otherwise nothing is read
    or written. A program that does not load is traced.

    Args:
      folder: where to keep programs; `None` is `programs` in `$JAXSPEC_CACHE`, by default the user's cache folder.
      max_bytes: the size limit of all programs together; the least recently used are removed.

    Returns:
      The folder.

    Raises:
      OSError: `folder` is `None`, and the user has no home folder.

    Example:
        >>> jaxspec.use_program_cache(folder, max_bytes=10**9).is_dir()
        True
        >>> jaxspec.generate(target, None, prompt, max_new_tokens=4).tokens.shape
        (2, 4)
    """
    path = default_folder() if folder is None else as_path("folder", folder)
    PROGRAMS.files = ProgramFiles(PrivateFolder(path, max_bytes), facts)
    return path


def use_by_default() -> None:
    """Keeps programs for a command, unless `$JAXSPEC_PROGRAM_CACHE` is 0 or the user has no home folder.

    Those of the last command are loaded while this one loads its weights.
    """
    if os.environ.get(_SWITCH) == "0":
        return
    with contextlib.suppress(OSError, NoCompilerError):
        use_program_cache()
        if PROGRAMS.files is not None and jax.default_backend() == "cpu" and PROGRAMS.files.folder.names():
            register()  # a program does not load before its kernels
            PROGRAMS.files.preload(_IN_A_COMMAND)


def default_folder() -> Path:
    """Returns the folder of programs in the cache folder.

    Raises:
      OSError: the user has no home folder.
    """
    return cache_root() / "programs"


def facts() -> Hashable:
    """Returns what all programs depend on."""
    device = jax.devices()[0]
    variables = sorted(name for name in os.environ if name.startswith(_READ_BY_COMPILERS))
    return (
        sources_digest(Path(__file__).parents[1]),
        tuple((name, importlib.metadata.version(name)) for name in _PACKAGES),
        tuple((name, os.environ[name]) for name in variables if name not in _IDLE_VARIABLES),
        (device.platform, device.device_kind, device.client.platform_version, jax.device_count(), os.cpu_count()),
        this_processor(),
        find_kernels(),
    )


def sources_digest(folder: Path) -> str:
    """Returns the SHA-256 of all source files below a folder, with their names."""
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(_SOURCES))
    digests = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    return hashlib.sha256(repr(digests).encode()).hexdigest()
