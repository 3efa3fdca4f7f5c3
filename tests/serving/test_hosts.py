"""Processes that send and receive commands, as threads over sockets, and what they say when one is lost."""

import contextlib
import socket
import threading
import time

import pytest

from jaxspec.serving import hosts
from jaxspec.serving.hosts import Follower, Leader
from jaxspec.serving.wire import Connection

SECONDS = 30.0


class End:
    """Keeps the reason for which a process would end."""

    def __init__(self):
        self.reason, self.came = None, threading.Event()

    def __call__(self, reason):
        self.reason = reason
        self.came.set()

    def wait(self):
        assert self.came.wait(SECONDS)
        return self.reason


def wait_until(reached):
    until = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.001)


class Run:
    """A leader and its followers, with their clock."""

    def __init__(self, count=1, **given):
        self.now, self.compiled, self.ends = 0.0, 0.0, [End() for _ in range(count + 1)]
        pairs = {number: socket.socketpair() for number in range(1, count + 1)}
        clock = lambda: self.now  # noqa: E731
        others = {number: (f"process {number} (b)", Connection(one)) for number, (one, _) in pairs.items()}
        self.connections = [Connection(other) for _, other in pairs.values()]
        self.followers = [
            Follower(one, clock=clock, end=end, compiled=lambda: self.compiled)
            for one, end in zip(self.connections, self.ends[1:], strict=True)
        ]
        self.leader = Leader(others, clock=clock, end=self.ends[0], **given)
        self.seen = []

    def follow(self, said="ok"):
        """Starts a thread for each follower that does all commands."""

        def run(follower):
            with contextlib.suppress(RuntimeError):  # a process is lost
                for number, name, arguments in follower:
                    self.seen.append((number, name, arguments))
                    follower.done(number, said)

        threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in self.followers]
        for thread in threads:
            thread.start()
        return threads

    def do(self, name, *arguments):
        number = self.leader.tell(name, *arguments)
        self.leader.done(number, "ok")
        self.leader.agree(number)


def test_commands_arrive_in_order_until_the_end():
    run = Run()
    (thread,) = run.follow()
    run.do("feed", 3, [1, 2])
    run.do("advance", {"rounds": 4, "text": "grüße"})
    run.leader.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert run.seen == [(1, "feed", [3, [1, 2]]), (2, "advance", [{"rounds": 4, "text": "grüße"}])]
    assert [end.reason for end in run.ends] == [None, None]


def test_an_error_of_the_first_process_is_raised_on_the_others():
    run = Run()
    run.leader.close("MemoryError: 3 GiB")
    with pytest.raises(RuntimeError, match="process 0 has failed: MemoryError: 3 GiB"):
        list(run.followers[0])
    assert run.ends[1].reason is None


def test_another_result_ends_the_run_on_all():
    run = Run(2)
    run.follow("other")
    number = run.leader.tell("begin")
    run.leader.done(number, "ok")
    with pytest.raises(RuntimeError, match="differs from process 0 after command 1: got other, expected ok"):
        run.leader.agree(number)
    assert [end.wait() for end in run.ends] == [run.leader.reason] * 3


def test_a_process_that_ends_is_named_on_all():
    run = Run(2)
    run.connections[0].close()
    reason = "process 1 (b) has ended, or closed its connection"
    assert (run.ends[0].wait(), run.ends[2].wait()) == (reason, reason)
    with pytest.raises(RuntimeError, match="process 1"):
        run.leader.tell("feed")


def test_a_process_that_fails_is_named():
    run = Run()
    run.followers[0].fail("KeyError: 3")
    assert run.ends[0].wait() == "process 1 (b) has failed: KeyError: 3"


def test_a_process_that_has_failed_does_not_name_the_first_one():
    """The first process closes the connection then, and its reason may not arrive."""
    own, other = socket.socketpair()
    end = End()
    Follower(Connection(own), end=end).fail("KeyError: 3")
    other.close()
    assert end.wait() == "this process has failed: KeyError: 3"


def test_the_first_process_that_ends_is_named():
    run = Run()
    run.leader._connections[1].close()
    assert run.ends[1].wait() == "process 0 has ended, or closed its connection"


def test_what_is_not_of_the_protocol_is_said():
    run = Run()
    run.connections[0].send({"done": "x"})
    assert "process 1 (b) has said what is not of this protocol" in run.ends[0].wait()


def test_who_compiles_says_so_each_second():
    """Also if a command may take less time than passes between signs of life."""
    run = Run(seconds=2.0)
    number = run.leader.tell("advance")
    run.leader.done(number, "ok")
    for second in range(1, 11):
        run.now = run.compiled = float(second)
        run.followers[0].look()
        wait_until(lambda second=second: run.leader._alive._processes[1].compiled == second)
        run.leader.look()
    assert run.ends[0].reason is None
    run.now = 12.0
    run.leader.look()
    assert run.ends[0].wait() == "process 1 (b) hangs: it has not completed command 1 (advance) within 2 s (--deadline)"


def test_silence_is_noticed_on_both_sides():
    run = Run()
    run.follow()
    for seconds in (5.0, 10.0, 15.0, 20.0):
        run.now = seconds
        run.followers[0].look()
        run.leader.look()
        run.do("feed")  # what was sent before has arrived, too
    assert [end.reason for end in run.ends] == [None, None]
    run.now = 34.9
    run.leader._alive.heard(0)
    assert run.leader._alive.lost() is None
    run.now = 35.0
    run.leader.look()
    assert run.ends[0].wait() == (
        "process 1 (b) has been silent for 15 s: it has died, is stopped or cannot be reached"
    )
    assert run.ends[1].wait() == run.ends[0].reason  # it was alive, and hears that it is given up
    alone = Run()
    alone.now = 15.0
    alone.followers[0].look()
    assert alone.ends[1].wait() == "process 0 has been silent for 15 s: it has died, is stopped or cannot be reached"


def test_a_command_that_takes_too_long_is_noticed():
    run = Run()
    run.leader.done(run.leader.tell("advance"), "ok")
    run.now = 14.9
    run.leader._alive.heard(1)
    run.leader.look()
    assert run.ends[0].reason is None
    run.now = 15.0
    run.leader.look()
    hangs = "process 1 (b) hangs: it has not completed command 1 (advance) within 15 s (--deadline)"
    assert run.ends[0].wait() == hangs


def test_a_follower_on_its_device_ends_after_an_error_of_the_first_process(monkeypatch):
    """Its main thread waits for a collective that never ends, and does not ask for the next command."""
    monkeypatch.setattr(hosts, "_END_SECONDS", 0.0)
    run = Run()
    run.leader.tell("advance")
    assert next(iter(run.followers[0])).name == "advance"
    run.leader.close("MemoryError: 3 GiB")
    assert run.ends[1].wait() == "process 0 has failed: MemoryError: 3 GiB"


def test_a_follower_that_is_closed_stops_to_follow():
    run = Run()
    (thread,) = run.follow()
    run.followers[0].close()
    thread.join(SECONDS)
    assert not thread.is_alive() and run.ends[1].reason is None


def test_a_refused_command_is_no_difference():
    run = Run(2)
    number = run.leader.tell("encode")
    run.followers[1].done(number, "ok")
    run.followers[0].done(number, "", refused="too large")
    run.leader.done(number, "ok")
    assert run.leader.agree(number) == "process 1 (b): too large"
    assert [end.reason for end in run.ends] == [None] * 3
