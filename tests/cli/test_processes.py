"""Of several processes the first one prints; of the others come only errors."""

import logging
import sys

import pytest

from jaxspec.cli.processes import _first_prints

LOGGER = logging.getLogger("jaxspec")


def write():
    print("a line")
    print("a message", file=sys.stderr)
    try:
        raise MemoryError("of this host")
    except MemoryError:
        LOGGER.exception("command 7 (advance) has failed")
    LOGGER.warning("a warning")


@pytest.mark.parametrize("first", [True, False])
def test_errors_of_other_processes_are_shown(capfd, first):
    with _first_prints(first):
        write()
    printed = capfd.readouterr()
    assert printed.out == ("a line\n" if first else "")
    if first:
        assert "a message" in printed.err
        return
    assert printed.err.startswith("jaxspec: command 7 (advance) has failed\nTraceback")
    assert printed.err.endswith("MemoryError: of this host\n") and "a warning" not in printed.err
    LOGGER.error("afterwards")
    assert "afterwards" not in capfd.readouterr().err
