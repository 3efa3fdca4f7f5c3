"""Keeps files between runs: the folder for downloads, kernels and costs, and JAX's cache of compiled programs in it."""

import contextlib
import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import platformdirs

_logger = logging.getLogger(__name__)

_MARK = b"jaxspec\0"
_HEAD = len(_MARK) + hashlib.sha256().digest_size


def cache_root() -> Path:
    """Returns `$JAXSPEC_CACHE`, by default the user's cache folder; it need not exist.

    Raises:
      OSError: the user has no home folder.
    """
    try:
        return Path(os.environ.get("JAXSPEC_CACHE") or platformdirs.user_cache_dir("jaxspec")).expanduser()
    except RuntimeError as error:
        raise OSError(f"no folder to keep files in: {error}; set JAXSPEC_CACHE to one that can be written") from error


def enable_compilation_cache() -> None:
    """Keeps compiled programs in jaxspec's cache folder between runs, unless `JAX_COMPILATION_CACHE_DIR` is set."""
    import jax  # not needed to find the folder

    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder = cache_root() / "compiled"
    except OSError:  # without a home folder, each run compiles
        return
    _check_digests()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CheckedCache:
    """Wraps JAX's cache of compiled programs: removes damaged ones, which are then compiled again.

    JAX itself warns in every run about the half-written program of a killed process. Where it compresses with
    Zstandard, it even runs damaged bytes, which crashes.
    """

    def __init__(self, cache: Any, path: str):
        """Wraps the cache of the folder `path`."""
        self._cache, self._path = cache, Path(path)

    def get(self, key: str) -> bytes | None:
        """Returns the program that was put under a key; `None` if there is none or it is damaged."""
        if (found := self._cache.get(key)) is None:
            return None
        program = found[_HEAD:]
        if found[:_HEAD] == _head(program):
            return program
        path = self._path / f"{key}-cache"
        if found.startswith(_MARK):  # programs written without this wrapper have no digest
            _logger.warning("%s is damaged; compiling it again", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Stores a program with its digest."""
        self._cache.put(key, _head(value) + value)


def _head(program: bytes) -> bytes:
    return _MARK + hashlib.sha256(program).digest()


def _check_digests() -> None:
    """Makes JAX wrap the caches that it opens; a JAX without this private function checks nothing."""
    try:
        from jax._src import compilation_cache
    except ImportError:
        return
    opened = getattr(compilation_cache, "get_file_cache", None)
    if opened is None or hasattr(opened, "__wrapped__"):
        return

    @functools.wraps(opened)
    def checked(path: str) -> tuple[CheckedCache, str] | None:
        found = opened(path)
        return found and (CheckedCache(found[0], path), path)

    compilation_cache.get_file_cache = checked  # pyright: ignore[reportAttributeAccessIssue] to be replaced
