"""Concurrent processes of a test, which never outlive it."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONGEST = 600


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def started(folder: pathlib.Path, count: int, words):
    """Starts `python WORD...` `count` times, where `words(coordinator, process)` are the words.

    Standard error goes to `stderr-PROCESS` in the folder. All are killed in the end, and after `LONGEST` seconds.
    """
    coordinator = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with contextlib.ExitStack() as stack:
        processes = []
        for process in range(count):
            error = stack.enter_context(open(folder / f"stderr-{process}", "w"))
            command = [sys.executable, *words(coordinator, process)]
            options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": error, "text": True}
            processes.append(stack.enter_context(subprocess.Popen(command, **options)))
            stack.callback(processes[-1].kill)
        timer = threading.Timer(LONGEST, lambda: [process.kill() for process in processes])
        timer.start()
        stack.callback(timer.cancel)
        yield processes


def wait_for(process: subprocess.Popen, line: str) -> None:
    """Reads a process's output up to a line."""
    assert any(text.strip() == line for text in process.stdout), "it ended before"


def errors(folder: pathlib.Path, count: int) -> str:
    return "\n".join((folder / f"stderr-{process}").read_text() for process in range(count))
