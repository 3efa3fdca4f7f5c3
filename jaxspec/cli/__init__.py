"""The `jaxspec` command: options and printing; what is decoded is decided elsewhere."""

import os
import signal
import sys
import threading

_INTERRUPTED = 130
_SECONDS_TO_CLEAN_UP = 1.0


def main() -> None:
    """Runs the command with the process's arguments."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        from jaxspec.cli.app import run

        run()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave()
        raise


def _interrupt(*_) -> None:
    """Ends the process soon, whatever becomes of the exception.

    Raised while JAX collects garbage it is lost, and while JAX compiles it waits for the end.
    """
    sys.unraisablehook = lambda _: None
    timer = threading.Timer(_SECONDS_TO_CLEAN_UP, os._exit, (_INTERRUPTED,))
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _leave() -> None:
    # Python's own exit, while JAX compiles in other threads, ends in a segmentation fault.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
