"""Whose loss is reported, and when, by a clock of the test."""

import jax
import pytest

from jaxspec.serving.liveness import CompileTime, Liveness


class Run:
    """Three processes, of which the first gives commands."""

    def __init__(self):
        self.now = 0.0
        names = {number: f"process {number}" for number in range(3)}
        self.alive = Liveness(names, own=0, seconds=15.0, clock=lambda: self.now)

    def after(self, seconds, *, silent=(), **progress):
        """Passes time, with signs of life of all but some; `p1=(begun, done, compiled)` is the progress of one."""
        while seconds > 0:
            self.now += min(seconds, 5.0)
            seconds -= 5.0
            for process in (0, 1, 2):
                if process not in silent:
                    begun, done, compiled = progress.get(f"p{process}", (0, 0, 0.0))
                    self.alive.heard(process, begun=begun, done=done, compiled=compiled)
        return self.alive.lost()


def test_three_missed_signs_of_life_are_a_loss():
    run = Run()
    assert run.after(600.0) is None
    assert run.after(14.0, silent={2}) is None
    assert run.after(1.0, silent={2}) == (
        "process 2 has been silent for 15 s: it has died, is stopped or cannot be reached"
    )


def test_time_in_which_this_process_stood_still_does_not_count():
    run = Run()
    run.alive.sent(1, "feed")
    run.now = 60.0
    run.alive.excuse(50.0)
    assert run.alive.lost() is None
    run.now = 65.0
    assert "has been silent for 15 s" in run.alive.lost()


@pytest.mark.parametrize(
    ("progress", "named"),
    [
        ({"p0": (1, 0, 0.0), "p1": (1, 0, 0.0), "p2": (0, 0, 0.0)}, "process 2"),
        ({"p0": (1, 0, 0.0), "p1": (1, 1, 0.0), "p2": (1, 0, 0.0)}, "process 2"),
        ({"p0": (1, 0, 0.0), "p1": (1, 0, 0.0), "p2": (1, 0, 0.0)}, "process 1 or process 2"),
        ({"p0": (1, 0, 0.0), "p1": (1, 1, 0.0), "p2": (1, 1, 0.0)}, "process 0"),
    ],
)
def test_one_that_hangs_is_named(progress, named):
    """The others wait on their devices for it."""
    run = Run()
    run.after(100.0)
    run.alive.sent(1, "advance")
    assert run.after(14.0, **progress) is None
    assert (
        run.after(1.0, **progress)
        == f"{named} hangs: it has not completed command 1 (advance) within 15 s (--deadline)"
    )


def test_compilations_do_not_count():
    run, done = Run(), (1, 1, 0.0)
    run.alive.sent(1, "feed")
    for seconds in range(5, 300, 5):
        assert run.after(5.0, p1=(1, 0, float(seconds)), p2=done, p0=done) is None
    assert run.after(20.0, p1=(1, 0, 295.0), p2=done, p0=done).startswith("process 1 hangs")


def test_a_command_has_its_time_from_the_end_of_the_one_before_it():
    run = Run()
    run.alive.sent(1, "feed")
    run.alive.sent(2, "advance")
    waits = dict.fromkeys(("p0", "p1", "p2"), (1, 0, 0.0))
    assert run.after(10.0, **waits) is None
    goes_on = dict.fromkeys(waits, (2, 1, 0.0))
    assert run.after(5.0, **goes_on) is None
    assert run.after(10.0, **goes_on) is None
    assert "command 2 (advance)" in run.after(5.0, **goes_on)


def test_compilations_side_by_side_count_once():
    """Each process has its own time, and none is late while another one that has not completed the command compiles."""
    run = Run()
    run.alive.sent(1, "feed")
    for seconds in range(5, 101, 5):
        assert run.after(5.0, **dict.fromkeys(("p0", "p1", "p2"), (1, 0, float(seconds)))) is None
    compiled = dict.fromkeys(("p0", "p1", "p2"), (1, 0, 100.0))
    assert run.after(10.0, **compiled) is None
    assert run.after(5.0, **compiled).startswith("process 1 or process 2 hangs")


def test_another_block_counts_like_a_compilation():
    now = [0.0]
    measured = CompileTime(lambda: now[0])
    with measured.counted():
        now[0] = 40.0
        assert measured.seconds() == 40.0
    now[0] = 50.0
    assert measured.seconds() == 40.0
    measured.close()
    jax.monitoring.record_scalar("/jax/core/compile/it", 1.0)
    now[0] = 60.0
    assert measured.seconds() == 40.0
