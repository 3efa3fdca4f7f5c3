"""Lets the processes of a run find each other: the first one listens where JAX's coordinator is reached.

first      listens, shares its address and a secret through JAX, and lets in who knows it
others     connect, with what must be the same on all: their versions
"""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from jaxspec.serving.hosts import name_of
from jaxspec.serving.wire import Connection, RefusedError, introduce, welcome

# Seconds for which a process that connects may take to say who it is, and for which the first one waits for all.
_INTRODUCE_SECONDS, START_SECONDS = 10.0, 60.0
# Seconds after which it is looked whether all processes have come.
_ACCEPT_SECONDS = 0.05


def listen(coordinator: str) -> tuple[socket.socket, str]:
    """Listens at the address by which others reach the coordinator of JAX, which is in the first process too.

    Args:
      coordinator: `host:port` of the coordinator.

    Returns:
      The socket, and the host that others connect to. If that address is not one of this host, as with
      translated addresses or a name that means this host to itself alone, it listens on all addresses.
    """
    host = coordinator.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    named = [(family, str(address[0])) for family, _, _, _, address in found]
    # Many hosts know their own name as an address that only they can reach.
    outer = [one for one in named if not _is_loopback(one[1])] or (named if _means_this_host(host) else [])
    for family, address in outer:
        with contextlib.suppress(OSError):
            return socket.create_server((address, 0), family=family), address
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True), host
    return socket.create_server(("", 0)), host


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _means_this_host(host: str) -> bool:
    """Returns whether a host is asked for by a name or an address that means this one on every host."""
    try:
        return _is_loopback(host)
    except ValueError:
        return host == "localhost"


class _Arrivals:
    """Lets other processes in, each in a thread, so that strangers who say nothing keep nobody waiting."""

    def __init__(self, secret: bytes, count: int, facts: Mapping[str, str], until: float) -> None:
        self.found: dict[int, tuple[str, Connection]] = {}
        self.wrong: str | None = None
        self._secret, self._count, self._facts, self._until = secret, count, facts, until
        self._lock, self._open = threading.Lock(), set[Connection]()
        self._taken: dict[Connection, int] = {}

    @property
    def missing(self) -> list[int]:
        return [one for one in range(1, self._count) if one not in self.found]

    def let_in(self, connection: Connection) -> None:
        connection.wait_until(min(time.monotonic() + _INTRODUCE_SECONDS, self._until))
        with self._lock:
            self._open.add(connection)
        threading.Thread(target=self._welcome, args=(connection,), name="jaxspec-meeting", daemon=True).start()

    def close(self, reason: str | None) -> None:
        """Ends the connections of strangers; with a reason, those of processes of the run too."""
        with self._lock:
            strangers = self._open.copy()
            self._open.clear()
        for _, connection in () if reason is None else self.found.values():
            with contextlib.suppress(OSError):
                connection.try_send({"lost": reason})
            connection.close()
        for connection in strangers:
            connection.close()

    def _welcome(self, connection: Connection) -> None:
        wrong: list[str] = []
        try:
            process, name = welcome(connection, self._secret, lambda *said: self._check(connection, wrong, *said))
            connection.wait_until(None)
            with self._lock:
                if connection in self._open:
                    self._open.remove(connection)
                    self.found[process] = name, connection
                    return
        except (RefusedError, EOFError, OSError, ValueError):  # no process of this run, unless `wrong` says so
            pass
        connection.close()
        with self._lock:
            self._open.discard(connection)
            self._taken.pop(connection, None)
            self.wrong = self.wrong or next(iter(wrong), None)

    def _check(
        self, connection: Connection, wrong: list[str], process: int, name: str, theirs: dict[str, Any]
    ) -> str | None:
        with self._lock:
            if not 0 < process < self._count or process in self._taken.values():
                return f"{name} is not one of those that are missing: the run has begun with another one"
            names = sorted({*self._facts, *theirs})
            if differ := [one for one in names if self._facts.get(one) != theirs.get(one)]:
                said = "; ".join(f"{one}: {theirs.get(one)}, on process 0 {self._facts.get(one)}" for one in differ)
                wrong.append(f"{name} has other versions: {said}; install the same ones on all hosts")
                return wrong[0]
            self._taken[connection] = process
            return None


def gather(listening: socket.socket, secret: bytes, count: int, facts: Mapping[str, str]) -> dict[int, Any]:
    """Waits for the connections of all other processes; returns the name and connection of each.

    Args:
      listening: the socket that they connect to.
      secret: what only the processes of the run know.
      count: the number of processes, this one included.
      facts: what must be the same in all of them.

    Raises:
      RuntimeError: some have not connected in time, or have other packages; those that have come hear of it.
    """
    until = time.monotonic() + START_SECONDS
    arrivals = _Arrivals(secret, count, facts, until)
    listening.settimeout(_ACCEPT_SECONDS)
    reason: str | None = None
    while reason is None and arrivals.missing:
        with contextlib.suppress(TimeoutError):
            arrivals.let_in(Connection(listening.accept()[0]))
        if arrivals.wrong is not None:
            reason = arrivals.wrong
        elif time.monotonic() >= until and (missing := arrivals.missing):
            names = ", ".join(map(str, missing))
            within = f"within {START_SECONDS:.0f} s"
            reason = f"not all of {count} processes have connected {within}, missing: process {names}"
    arrivals.close(reason)
    if reason is not None:
        raise RuntimeError(reason)
    return arrivals.found


def enter(address: tuple[str, int], secret: bytes, process: int, facts: Mapping[str, str]) -> Connection:
    """Connects to the first process.

    Raises:
      RuntimeError: it cannot be reached, has begun without this process, or has other packages.
    """
    at = f"process 0 at {address[0]}:{address[1]}"
    try:
        connection = Connection(socket.create_connection(address, START_SECONDS))
        connection.wait_until(time.monotonic() + START_SECONDS)
    except OSError as error:
        raise RuntimeError(
            f"cannot connect to {at}: {error.strerror or error}; it has ended, or began earlier"
        ) from error
    try:
        introduce(connection, secret, process, name_of(process), facts)
    except RefusedError as error:
        connection.close()
        raise RuntimeError(f"{at} refuses process {process}: {error}") from None
    except TimeoutError:
        connection.close()
        raise RuntimeError(f"{at} has not answered within {START_SECONDS:.0f} s") from None
    except (EOFError, OSError, ValueError) as error:
        connection.close()
        raise RuntimeError(
            f"{at} has closed the connection: it has ended, or began without process {process}"
        ) from error
    connection.wait_until(None)
    return connection
