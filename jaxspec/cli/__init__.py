"""The `jaxspec` command: options and printing; what is decoded is decided elsewhere."""

import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Runs the command with the process's arguments."""
    try:
        from jaxspec.cli.app import run

        run()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave()
        raise


def _leave() -> None:
    # Python's own exit, while JAX compiles in other threads, ends in a segmentation fault.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
