"""Keeps compiled libraries in a folder, and loads one only while it has the bytes that were compiled.

A library's name has its SHA-256, so that library and digest come and go by one rename: half a library would end the
process with SIGBUS, and other bytes with anything. What an interrupted compiler leaves is in a folder of its own, which
the next process removes.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxspec.ops.native.compiler import NoCompilerError

_PARTIAL = ".partial-"
_LOCK = threading.Lock()


class RefusedError(Exception):
    """Signals that a library cannot be used."""


class _DamagedError(RefusedError):
    """Signals that a library is not as it was compiled."""


class _UnloadableError(RefusedError):
    """Signals that this machine cannot load a library that is as it was compiled: another one may."""


def _nothing() -> None:
    return None


def load(
    folder: Path,
    key: str,
    symbols: Sequence[str],
    make: Callable[[Path], None],
    instead: Callable[[], ctypes.CDLL | None] = _nothing,
) -> ctypes.CDLL:
    """Loads a library, after compiling it where the folder has no whole one.

    A whole one is loaded from a folder that cannot be written, too, and without a compiler.

    Args:
      folder: where libraries are kept; it need not exist.
      key: names all that the library depends on.
      symbols: what it must have.
      make: compiles it to a path.
      instead: loads another one, if it can, where the folder never had one.

    Raises:
      NoCompilerError: `make` raised it, or what it made cannot be loaded.
      OSError: the folder cannot be written, or no space is left.
    """
    with _LOCK:
        _remove_stale(folder)
        unloadable = []
        kept = sorted(folder.glob(f"kernels-{key}-*.so"))
        for path in kept:
            try:
                return open_whole(path, path.stem.rpartition("-")[2], symbols)
            except _DamagedError as error:
                print(f"jaxspec: {path} is damaged: {error}; compiling it again", file=sys.stderr)
                _remove(path)
            except _UnloadableError as error:
                unloadable.append(f"jaxspec: {path} cannot be loaded here: {error}; compiling another")
        for line in unloadable:
            print(line, file=sys.stderr)
        if not kept and (other := instead()) is not None:
            return other
        return _compile(folder, key, symbols, make)


def open_whole(path: Path, digest: str, symbols: Sequence[str]) -> ctypes.CDLL:
    """Loads a library that has this SHA-256 and these symbols.

    Raises:
      RefusedError: it is not whole, or cannot be loaded here.
    """
    if not path.is_file():  # reading from a pipe would wait
        raise _DamagedError("it is no file")
    try:
        if _sha256(path) != digest:
            raise _DamagedError("its bytes are not those that were compiled")
    except OSError as error:
        raise _DamagedError(str(error)) from error
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # a library that it needs is missing or too old, or nothing there may be run
        raise _UnloadableError(str(error)) from error
    if missing := [name for name in symbols if not hasattr(library, name)]:
        raise _DamagedError(f"it lacks {', '.join(missing)}")
    return library


def _compile(folder: Path, key: str, symbols: Sequence[str], make: Callable[[Path], None]) -> ctypes.CDLL:
    """Compiles and loads a library, and keeps one that could be loaded."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _partial(folder) as partial:
            made = partial / "kernels.so"
            make(made)
            try:
                digest = _sha256(made)
                library = open_whole(made, digest, symbols)
            except (OSError, RefusedError) as error:
                advice = f"if nothing may be run from {folder}, set JAXSPEC_CACHE to a folder from which it may"
                raise NoCompilerError(f"what was compiled cannot be loaded: {error}; {advice}") from error
            made.chmod(0o755)  # for all who share the folder
            os.replace(made, folder / f"kernels-{key}-{digest}.so")
    except OSError as error:
        advice = "kernels cannot be kept there; set JAXSPEC_CACHE to a folder with space that can be written"
        raise OSError(error.errno, f"{error.strerror}: {advice}", str(folder)) from error
    return library


@contextlib.contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Makes a folder for one compilation, which is locked as long as this process lives."""
    with contextlib.ExitStack() as stack:
        with _locked(folder):  # between its making and its lock it would look stale
            path = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.enter_context(_locked(path))
        yield path


def _remove_stale(folder: Path) -> None:
    """Removes the folders of compilations whose process has ended."""
    if not any(folder.glob(f"{_PARTIAL}*")):
        return
    with contextlib.suppress(OSError), _locked(folder):
        for path in folder.glob(f"{_PARTIAL}*"):
            with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_NB) as free:  # another user's stays
                if free:
                    shutil.rmtree(path)


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[bool]:
    """Locks a folder as long as this process lives, and yields whether it could: some network disks know no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes what stands in a library's place, as far as it can be."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
