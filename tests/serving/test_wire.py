"""Values go over a connection as they are, and only to and from processes that know a secret."""

import contextlib
import json
import socket
import struct
import threading

import pytest

from jaxspec.serving import wire
from jaxspec.serving.wire import MOST_BYTES, Connection, RefusedError, introduce, welcome


@pytest.fixture
def pair():
    one, other = (Connection(each) for each in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("value", [None, [], {"a": [1, 2.5, "ü\ud800", None]}, list(range(100_000)), 0.1 + 0.2])
def test_values_arrive(pair, value):
    thread = threading.Thread(target=pair[0].send, args=(value,))
    thread.start()
    assert pair[1].receive() == value
    thread.join()


def test_no_value_is_lost_that_was_sent_before_the_end(pair):
    pair[0].try_send(1)
    pair[0].close()
    assert pair[1].receive() == 1
    with pytest.raises(EOFError):
        pair[1].receive()


@pytest.mark.parametrize("sent", [struct.pack(">I", MOST_BYTES + 1), b"\0\0\0\2{]", b"\0\0\0\1\xff"])
def test_other_bytes_are_refused(sent):
    one, other = socket.socketpair()
    one.sendall(sent)
    with pytest.raises(ValueError, match="a frame must have at most|Expecting property name|can't decode"):
        Connection(other).receive()


def test_deep_values_are_refused():
    one, other = socket.socketpair()
    deep = b"[" * 100_000
    one.sendall(struct.pack(">I", len(deep)) + deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        Connection(other).receive()


def test_who_replays_a_proof_is_refused(pair):
    """A proof is worth nothing for another connection, or another name."""
    first, other = pair

    def take_part():
        with pytest.raises(RefusedError):
            introduce(other, b"secret", 1, "b", {})

    thread = threading.Thread(target=take_part)
    thread.start()
    first.send({"nonce": "0"})
    heard = first.receive()
    first.send({"proof": "0"})
    thread.join()
    again, reader = (Connection(each) for each in socket.socketpair())
    thread = threading.Thread(target=lambda: (again.receive(), again.send(heard)))
    thread.start()
    with pytest.raises(RefusedError, match="does not know the secret"):
        welcome(reader, b"secret", lambda *_: None)
    thread.join()


def test_a_first_process_without_the_secret_is_refused(pair):
    first, other = pair

    def pretend():
        first.send({"nonce": "0"})
        first.receive()
        first.send({"proof": "0" * 64})

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(RefusedError, match="is not the first one of this run"):
        introduce(other, b"secret", 1, "b", {})
    thread.join()


def test_the_time_to_answer_is_of_all_bytes(pair, monkeypatch):
    """A stranger who sends one byte before each limit must not hold the first process."""
    now = [0.0]
    monkeypatch.setattr(wire.time, "monotonic", lambda: now[0])
    one, other = socket.socketpair()
    slow = Connection(other)
    slow.wait_until(10.0)

    class Drip:
        def recv(self, count):
            now[0] += 4.0
            return b"\0"

        def settimeout(self, seconds):
            assert 0 < seconds <= 10.0

    monkeypatch.setattr(slow, "_socket", Drip())
    with pytest.raises(TimeoutError, match="the time to answer is over"):
        slow.receive()
    one.close()
    other.close()


def test_what_is_malformed_is_refused_before_its_proof(pair):
    """A value that is nested as deeply as JSON is read would be too deep for the text that is proved."""
    first, other = pair
    deep = json.loads("[" * 900 + "]" * 900)
    other.send({"process": 1, "name": "b", "facts": {"a": deep}, "nonce": "0", "proof": "0"})
    with pytest.raises(ValueError, match="what a process says of itself is malformed"):
        welcome(first, b"secret", lambda *_: None)


def test_a_sign_of_life_does_not_wait_for_a_peer_that_does_not_read(pair):
    first, _ = pair
    first._socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            first._socket.send(b"0" * 4096)
    first._socket.setblocking(True)
    first.try_send({"beat": 0.0})
