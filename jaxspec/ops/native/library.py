"""Compiles libraries, keeps them in a folder, and loads one only if its bytes are those that were compiled.

No process that a compiler starts outlives this one.

A library's name contains its SHA-256, so that one rename publishes library and digest: loading half a library would end
the process with SIGBUS, other bytes with anything. Each compilation has its own folder, which the next process removes
if it was interrupted.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_logger = logging.getLogger(__name__)

_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 1 << 20  # a linker that fills the disk may be killed before it reports that
# A compiler starts other processes, which survive when it is killed. All are in one group; a guard in it reads from a
# pipe that closes when this process ends, however it ends, and then kills the group.
_GUARD = """
exec 3<&0
"$@" 3<&- &
compiler=$!
(read -r line <&3; kill -9 -$$) >/dev/null 2>&1 &
guard=$!
wait $compiler
status=$?
kill -9 $guard
wait $guard 2>/dev/null
exit $status
"""


class NoCompilerError(RuntimeError):
    """Signals that no C++ compiler was found, or that it failed to compile the kernels."""


def find_compiler() -> list[str]:
    """Returns the compiler's command: `$CXX`, or the first of c++, g++ and clang++ on the path.

    Raises:
      NoCompilerError: there is none.
    """
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in _COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NoCompilerError(
        f"no C++ compiler: none of {', '.join(_COMPILERS)} is on the path; install one, or set CXX to its command"
    )


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Runs a compiler's command.

    Args:
      command: the command's words.
      folder: where its temporary files go.

    Raises:
      NoCompilerError: it did not run, took too long or failed; the message has its output.
      OSError: no space is left.
    """
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    environment = os.environ | {"LC_ALL": "C", "TMPDIR": str(folder)}
    guarded = ["/bin/sh", "-c", _GUARD, "sh", *command]
    read, write = os.pipe()
    with open(read, "rb") as end, open(write, "wb") as alive:
        try:
            process = subprocess.Popen(guarded, stdin=end, env=environment, start_new_session=True, **options)
            with process, alive:  # on exit, ends running processes and waits
                _, said = process.communicate(timeout=_SECONDS)
        except OSError as error:
            raise NoCompilerError(f"{shlex.join(command)} did not run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise NoCompilerError(f"{shlex.join(command)} took more than {_SECONDS} seconds") from error
    if process.returncode != 0:
        _fail(command, folder, process.returncode, said)


def _fail(command: Sequence[str], folder: Path, status: int, said: str) -> None:
    full = [code for code in _FULL_DISK if os.strerror(code) in said]
    if not full and shutil.disk_usage(folder).free < _LEAST_BYTES:
        full = [errno.ENOSPC]
    if full:
        raise OSError(full[0], os.strerror(full[0]), str(folder))
    not_run = status in (126, 127)  # a shell's statuses
    raise NoCompilerError(f"{shlex.join(command)} {'did not run' if not_run else 'failed'}:\n{said[-2000:]}")


_PARTIAL = ".partial-"
_LOCK = threading.Lock()


class RefusedError(Exception):
    """Signals that a library cannot be used."""


class _DamagedError(RefusedError):
    """Signals that a library was changed after it was compiled."""


class _UnloadableError(RefusedError):
    """Signals that this machine cannot load an intact library; another one may."""


def _nothing() -> None:
    return None


def load(
    folder: Path,
    key: str,
    symbols: Sequence[str],
    make: Callable[[Path], None],
    instead: Callable[[], ctypes.CDLL | None] = _nothing,
) -> ctypes.CDLL:
    """Loads a library, after compiling it if the folder has no intact one.

    An intact library needs neither a writable folder nor a compiler.

    Args:
      folder: the folder of libraries; it need not exist.
      key: identifies everything that the library depends on.
      symbols: the symbols that it must have.
      make: compiles it to a path.
      instead: loads another library, if possible, when the folder never had one.

    Raises:
      NoCompilerError: `make` raised it, or its library cannot be loaded.
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
                _logger.warning("%s is damaged: %s; compiling it again", path, error)
                _remove(path)
            except _UnloadableError as error:
                unloadable.append(f"{path} cannot be loaded here: {error}; compiling another")
        for line in unloadable:
            _logger.warning("%s", line)
        if not kept and (other := instead()) is not None:
            return other
        return _compile(folder, key, symbols, make)


def open_whole(path: Path, digest: str, symbols: Sequence[str]) -> ctypes.CDLL:
    """Loads a library that has this SHA-256 and these symbols.

    Raises:
      RefusedError: it is damaged, or cannot be loaded here.
    """
    if not path.is_file():  # reading from a pipe would block
        raise _DamagedError("it is not a file")
    try:
        if _sha256(path) != digest:
            raise _DamagedError("its bytes are not those that were compiled")
    except OSError as error:
        raise _DamagedError(str(error)) from error
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # a dependency is missing or too old, or the folder is mounted noexec
        raise _UnloadableError(str(error)) from error
    if missing := [name for name in symbols if not hasattr(library, name)]:
        raise _DamagedError(f"it lacks {', '.join(missing)}")
    return library


def _compile(folder: Path, key: str, symbols: Sequence[str], make: Callable[[Path], None]) -> ctypes.CDLL:
    """Compiles and loads a library, and keeps it if it could be loaded."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _partial(folder) as partial:
            made = partial / "kernels.so"
            make(made)
            try:
                digest = _sha256(made)
                library = open_whole(made, digest, symbols)
            except (OSError, RefusedError) as error:
                advice = f"if {folder} does not allow execution, set JAXSPEC_CACHE to a folder that does"
                raise NoCompilerError(f"the compiled library cannot be loaded: {error}; {advice}") from error
            made.chmod(0o755)  # for all users of the folder
            os.replace(made, folder / f"kernels-{key}-{digest}.so")
    except OSError as error:
        advice = "kernels cannot be kept there; set JAXSPEC_CACHE to a writable folder with space"
        raise OSError(error.errno, f"{error.strerror}: {advice}", str(folder)) from error
    return library


@contextlib.contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Makes a folder for one compilation, locked as long as this process lives."""
    with contextlib.ExitStack() as stack:
        with _locked(folder):  # unlocked, a new folder would look stale
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
            with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_NB) as free:  # another user's folder stays
                if free:
                    shutil.rmtree(path)


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[bool]:
    """Locks a folder as long as this process lives, and yields whether it could: some network disks have no locks."""
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
    """Removes a damaged library, or anything else at its path, if possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
