"""Keeps compiled programs between runs, so that only the first run of a shape compiles."""

import contextlib
import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import jax

from jaxspec.core.cache_root import cache_root

_MARK = b"jaxspec\0"
_HEAD = len(_MARK) + hashlib.sha256().digest_size


def enable_compilation_cache() -> None:
    """Keeps compiled programs in jaxspec's cache folder, unless JAX is told another place."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder = cache_root() / "compiled"
    except OSError:  # who has no home compiles each time
        return
    _check_digests()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CheckedCache:
    """Wraps JAX's cache of compiled programs: one that is not as it was written is removed, and compiled again.

    JAX itself would complain of half a program, which a killed process leaves, in every run; and run any other bytes
    where it compresses by Zstandard, which ends the process.
    """

    def __init__(self, cache: Any, path: str):
        """Wraps the cache of the folder `path`."""
        self._cache, self._path = cache, Path(path)

    def get(self, key: str) -> bytes | None:
        """Returns a program as it was put; `None` if there is none."""
        if (found := self._cache.get(key)) is None:
            return None
        program = found[_HEAD:]
        if found[:_HEAD] == _head(program):
            return program
        path = self._path / f"{key}-cache"
        if found.startswith(_MARK):  # earlier ones have no digest
            print(f"jaxspec: {path} is damaged; compiling it again", file=sys.stderr)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program."""
        self._cache.put(key, _head(value) + value)


def _head(program: bytes) -> bytes:
    return _MARK + hashlib.sha256(program).digest()


def _check_digests() -> None:
    """Lets JAX wrap the caches that it opens; JAX has no public name for that, and one without it checks nothing."""
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
