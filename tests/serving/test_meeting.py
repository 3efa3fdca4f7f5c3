"""Processes find each other over sockets, and strangers do not keep them from it."""

import contextlib
import socket
import threading
import time

import pytest

from jaxspec.serving import meeting
from jaxspec.serving.meeting import enter, gather, listen
from jaxspec.serving.wire import Connection, introduce

SECRET, FACTS, SECONDS = b"secret", {"jaxspec": "1.0", "jax": "0.10"}, 30.0


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
    monkeypatch.setattr(meeting, "START_SECONDS", 0.0)
    with gathering(3) as (_, found):
        pass
    assert found["error"].endswith("have connected within 0 s, missing: process 1, 2")


def test_strangers_who_say_nothing_keep_nobody_waiting():
    with gathering(2) as (address, found):
        strangers = [socket.create_connection(address) for _ in range(3)]
        enter(address, SECRET, 1, FACTS)
    assert sorted(found) == [1]
    for one in strangers:
        one.settimeout(SECONDS)
        while one.recv(1000):  # until its connection is closed
            pass
        one.close()


def test_those_who_are_there_hear_that_others_are_missing(monkeypatch):
    found = meeting._Arrivals(SECRET, 3, FACTS, time.monotonic() + SECONDS)
    one, other = (Connection(each) for each in socket.socketpair())
    found.let_in(one)
    introduce(other, SECRET, 1, "b", FACTS)
    until = time.monotonic() + SECONDS
    while found.missing != [2]:
        assert time.monotonic() < until
    found.close("process 2 is missing")
    assert other.receive() == {"lost": "process 2 is missing"}


@pytest.mark.parametrize("coordinator", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_the_first_process_listens_where_the_coordinator_is(coordinator):
    if coordinator.startswith("[") and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    listening, host = listen(coordinator)
    with listening:
        assert listening.getsockname()[0] == host
        assert host in ("127.0.0.1", "::1")
        socket.create_connection((host, listening.getsockname()[1])).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "own-name"])
def test_an_address_of_no_card_is_listened_to_on_all(host, monkeypatch):
    """An address that others see alone, and a name that means this host to itself as 127.0.1.1."""
    lookup = {"192.0.2.1": "192.0.2.1", "own-name": "127.0.1.1"}

    def found(name, *_, **__):
        if name not in lookup:
            raise socket.gaierror(-2, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (lookup[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    listening, said = listen(f"{host}:8476")
    with listening:
        assert said == host and listening.getsockname()[0] in ("::", "0.0.0.0")
