"""Implements the `jaxspec` command: options and printing, no logic."""

import os
import signal
import sys
import threading

_INTERRUPTED = 130
_SECONDS_TO_CLEAN_UP = 1.0


def main() -> None:
    """Runs the command with the arguments of the process."""
    ending = _Ending()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending)
    try:
        from jaxspec.cli.app import run

        run()
    except KeyboardInterrupt:
        ending.leave()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            ending.leave()
        raise


class _Ending:
    """Handles a signal: the command stops, cleans up and exits with the code of that signal."""

    def __init__(self):
        self._code = _INTERRUPTED

    def __call__(self, number: int, frame: object) -> None:
        """Ends the process soon, even if the exception does not.

        An exception raised while JAX collects garbage is lost, and one raised while JAX compiles is delayed until
        compilation ends.
        """
        self._code = 128 + number
        sys.unraisablehook = lambda _: None
        timer = threading.Timer(_SECONDS_TO_CLEAN_UP, os._exit, (self._code,))
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    def leave(self) -> None:
        """Exits without Python's cleanup, which is a segmentation fault while JAX compiles in other threads."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)
