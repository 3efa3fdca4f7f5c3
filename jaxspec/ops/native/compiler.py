"""Finds and runs the C++ compiler; nothing that it starts outlives this process."""

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 1 << 20  # a linker that fills the disk may be killed before it says so
# A compiler starts others, which go on when it is killed. All are in one group; a second process of it reads from a
# pipe that ends with this process, however that ends, and then kills the group.
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
    """Signals that no C++ compiler was found, or that it did not compile the kernels."""


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
      command: its words.
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
            with process, alive:  # ends what still runs when this is left, and then waits
                _, said = process.communicate(timeout=_SECONDS)
        except OSError as error:
            raise NoCompilerError(f"{shlex.join(command)} did not run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise NoCompilerError(f"{shlex.join(command)} took more than {_SECONDS} seconds") from error
    if process.returncode != 0:
        _fail(command, folder, process.returncode, said)


def _fail(command: Sequence[str], folder: Path, status: int, said: str) -> None:
    """Raises what a failure means."""
    full = [code for code in _FULL_DISK if os.strerror(code) in said]
    if not full and shutil.disk_usage(folder).free < _LEAST_BYTES:
        full = [errno.ENOSPC]
    if full:
        raise OSError(full[0], os.strerror(full[0]), str(folder))
    not_run = status in (126, 127)  # so says a shell
    raise NoCompilerError(f"{shlex.join(command)} {'did not run' if not_run else 'failed'}:\n{said[-2000:]}")
