"""Processes that send and receive commands, as threads over sockets, and what they say when one is lost."""

import contextlib
import socket
import threading

import pytest

from jaxspec.serving import hosts
from jaxspec.serving.hosts import Follower, Leader, enter, gather
from jaxspec.serving.wire import Connection

SECRET, FACTS, SECONDS = b"secret", {"jaxspec": "1.0", "jax": "0.10"}, 30.0


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


class Run:
    """A leader and its followers, with their clock."""

    def __init__(self, count=1):
        self.now, self.ends = 0.0, [End() for _ in range(count + 1)]
        pairs = {number: socket.socketpair() for number in range(1, count + 1)}
        clock = lambda: self.now  # noqa: E731
        others = {number: (f"process {number} (b)", Connection(one)) for number, (one, _) in pairs.items()}
        self.connections = [Connection(other) for _, other in pairs.values()]
        self.followers = [
            Follower(one, clock=clock, end=end) for one, end in zip(self.connections, self.ends[1:], strict=True)
        ]
        self.leader = Leader(others, clock=clock, end=self.ends[0])
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


def test_the_first_process_that_ends_is_named():
    run = Run()
    run.leader._connections[1].close()
    assert run.ends[1].wait() == "process 0 has ended, or closed its connection"


def test_what_is_not_of_the_protocol_is_said():
    run = Run()
    run.connections[0].send({"done": "x"})
    assert "process 1 (b) has said what is not of this protocol" in run.ends[0].wait()


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


@contextlib.contextmanager
def gathering(count, facts=FACTS):
    """Yields the address of a first process that waits for others in a thread, and what came of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = {}

        def run():
            try:
                found.update(gather(listening, SECRET, count, facts))
            except RuntimeError as error:
                found["error"] = str(error)

        thread = threading.Thread(target=run)
        thread.start()
        yield listening.getsockname()[:2], found
        thread.join(SECONDS)
    assert not thread.is_alive()


def test_processes_find_each_other_and_strangers_do_not_matter():
    with gathering(3) as (address, found):
        socket.create_connection(address).close()
        with pytest.raises(RuntimeError, match="refuses process 2: it does not know the secret"):
            enter(address, b"another", 2, FACTS)
        enter(address, SECRET, 2, FACTS)
        with pytest.raises(RuntimeError, match=r"refuses process 2: process 2 \(.*\) is not one of those"):
            enter(address, SECRET, 2, FACTS)
        enter(address, SECRET, 1, FACTS)
    assert sorted(found) == [1, 2]
    assert found[2][0].startswith("process 2 (")


def test_a_process_that_comes_late_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()[:2]
    with pytest.raises(RuntimeError, match="cannot connect to process 0 at 127.0.0.1:.*, or began earlier"):
        enter(address, SECRET, 1, FACTS)


def test_other_versions_are_said_on_both_sides():
    said = r"process 1 \(.*\) has other versions: jaxspec: 1.1, on process 0 1.0; install the same ones on all hosts"
    with gathering(2) as (address, found), pytest.raises(RuntimeError, match=said):
        enter(address, SECRET, 1, FACTS | {"jaxspec": "1.1"})
    assert "has other versions" in found["error"]


def test_missing_processes_are_named(monkeypatch):
    monkeypatch.setattr(hosts, "START_SECONDS", 0.0)
    with gathering(3) as (_, found):
        pass
    assert found["error"].endswith("have connected within 0 s, missing: process 1, 2")
