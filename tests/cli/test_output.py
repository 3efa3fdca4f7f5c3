"""The status line while programs compile, and speeds that leave compilation out."""

import io

import pytest
from rich.console import Console

from jaxspec.cli.output import Compiling
from jaxspec.core import programs
from jaxspec.text.result import Timing


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed, as a list of one; programs that were held before are out of sight."""
    now = [100.0]
    monkeypatch.setattr(programs.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("jaxspec.cli.output.PROGRAMS", programs.Programs())
    return now


def shown(console, status):
    with console.capture() as captured:
        console.print(status)
    return captured.get().strip()


def test_the_first_call_of_a_program_says_that_it_compiles(clock):
    from jaxspec.cli.output import PROGRAMS

    console, said = Console(), []
    earlier = PROGRAMS.find("earlier", lambda: lambda: clock.__setitem__(0, clock[0] + 7))
    earlier()
    status = Compiling("reading the prompt")

    def compile_inside():
        clock[0] += 2
        inner()
        clock[0] += 1
        said.append(shown(console, status))

    outer = PROGRAMS.find("outer", lambda: compile_inside)
    inner = PROGRAMS.find("inner", lambda: lambda: clock.__setitem__(0, clock[0] + 4))
    said.append(shown(console, status))
    outer()
    clock[0] += 10
    said.append(shown(console, status))
    assert said == ["reading the prompt", "compiling (7 s, once)", "reading the prompt"]
    outer()
    assert said[-1] == "reading the prompt" and PROGRAMS.first_seconds == 14
    assert not PROGRAMS.compiling


def test_nothing_is_said_where_stderr_is_no_terminal():
    out = io.StringIO()
    with Console(file=out).status(Compiling("reading the prompt")):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing(4.0, 10), "2.5 tokens/s"),
        (Timing(4.0, 10, 3.0, 2), "8.0 tokens/s, without compilation"),
        (Timing(4.0, 10, 4.0, 10), "2.5 tokens/s"),
    ],
)
def test_a_speed_without_compilation_says_so(timing, said):
    assert timing.speed == said
