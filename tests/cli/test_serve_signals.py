"""How `jaxspec serve` exits after a signal: whoever started several processes must not take it for the work's end."""

import contextlib
import signal

import pytest
import typer

from jaxspec.cli import serve


class Joined:
    """Processes that have joined without any others."""

    first, alone = True, False

    def __init__(self, distributed):
        self.distributed = distributed

    def joined(self):
        return contextlib.nullcontext()

    def check_same(self, options, number):
        return number


@pytest.fixture(autouse=True)
def _handlers():
    before = {word: signal.getsignal(word) for word in (signal.SIGINT, signal.SIGTERM)}
    yield
    for word, handler in before.items():
        signal.signal(word, handler)


def end(monkeypatch, *words, distributed):
    """Runs the command with a server that is ended by these signals, and returns its exit code."""

    def serves(options, uvicorn, build_app, heard):
        serve._note_signals(heard)
        for word in words:
            signal.raise_signal(word)

    monkeypatch.setattr(serve, "_serve", serves)
    try:
        serve.run(serve.Options(processes=Joined(distributed)))
    except typer.Exit as found:
        return found.exit_code
    return 0


def test_a_signal_is_no_success_under_distributed(monkeypatch):
    assert end(monkeypatch, signal.SIGTERM, distributed=True) == 128 + signal.SIGTERM == 143
    assert end(monkeypatch, signal.SIGINT, signal.SIGTERM, distributed=True) == 130
    assert end(monkeypatch, distributed=True) == 0


def test_processes_that_were_named_end_well(monkeypatch):
    assert end(monkeypatch, signal.SIGTERM, distributed=False) == 0
