"""Sends JSON values between processes of one run, which prove to each other that they belong to it.

first process -> other     {"nonce"}
first process <- other     {"process", "name", "facts", "nonce", "proof"}
first process -> other     {"proof"}, or {"refused"} with the reason
then                       any values, each after its length in 4 bytes
"""

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

# The largest frame, and the largest one of a peer that has not proved itself yet.
MOST_BYTES, _MOST_UNKNOWN = 2**28, 2**14
_LENGTH = struct.Struct(">I")
# Returns why not to take a process with this number, name and facts; `None` to take it.
Check: TypeAlias = Callable[[int, str, dict[str, Any]], str | None]


class RefusedError(RuntimeError):
    """Reports that a process does not take part in a run: it comes late, has other packages or no proof."""


class Connection:
    """Sends and receives values that JSON has. One thread may receive, and any threads send."""

    def __init__(self, connected: socket.socket) -> None:
        """Takes a connected socket, which `close` closes."""
        self._socket, self._sending = connected, threading.Lock()
        self._until: float | None = None
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, value: Any) -> None:
        """Sends a value.

        Raises:
          ValueError: the value is too large.
          OSError: the connection has ended.
        """
        frame = _framed(value)
        with self._sending:
            self._socket.sendall(frame)

    def try_send(self, value: Any) -> None:
        """Sends a short value, unless it would have to wait: for another thread, or for a peer that does not read."""
        if self._sending.acquire(blocking=False):
            try:
                if self._has_room():
                    self._socket.sendall(_framed(value))
            finally:
                self._sending.release()

    def receive(self, most: int = MOST_BYTES) -> Any:
        """Waits for a value.

        Raises:
          EOFError: the peer has closed the connection.
          ValueError: what came is not a value, or larger than `most` bytes.
          OSError: the connection has ended.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > most:
            raise ValueError(f"a frame must have at most {most} bytes, got {length}")
        try:
            return json.loads(self._read(length))
        except RecursionError as error:
            raise ValueError("a frame is nested too deeply") from error

    def wait_until(self, until: float | None) -> None:
        """Sets the time by `time.monotonic` after which `send` and `receive` raise `TimeoutError`; `None` for none."""
        self._until = until
        self._limit()

    def close(self) -> None:
        """Ends the connection, and the `receive` of another thread."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if self._until is not None:
                self._limit()  # for all that comes, not for each piece
            if not (new := self._socket.recv(min(count - len(data), 2**20))):
                raise EOFError("the connection was closed")
            data += new
        return bytes(data)

    def _limit(self) -> None:
        if self._until is None:
            self._socket.settimeout(None)
        elif (left := self._until - time.monotonic()) > 0:
            self._socket.settimeout(left)
        else:
            raise TimeoutError("the time to answer is over")

    def _has_room(self) -> bool:
        """Returns whether a short value fits into what the system keeps until the peer reads it."""
        try:
            with selectors.DefaultSelector() as found:
                found.register(self._socket, selectors.EVENT_WRITE)
                return bool(found.select(0))
        except ValueError as error:  # another thread has closed the socket
            raise OSError("the connection is closed") from error


def introduce(connection: Connection, secret: bytes, process: int, name: str, facts: Mapping[str, str]) -> None:
    """Takes part in a run.

    Args:
      connection: the connection to the first process.
      secret: what only the processes of the run know.
      process: the number of this process.
      name: what it is called in messages.
      facts: what must be the same in all processes, such as versions.

    Raises:
      RefusedError: the first process does not take it, or is not that of this run.
      EOFError, OSError, ValueError: the connection has ended, or what came is not of this protocol.
    """
    theirs, own = _text(connection.receive(_MOST_UNKNOWN), "nonce"), secrets.token_hex(16)
    said = {"process": process, "name": name, "facts": dict(facts), "nonce": own}
    connection.send({**said, "proof": _proof(secret, "other", theirs, said).decode()})
    answer = connection.receive(_MOST_UNKNOWN)
    if isinstance(answer, dict) and "refused" in answer:
        raise RefusedError(_text(answer, "refused"))
    if not hmac.compare_digest(_text(answer, "proof").encode(), _proof(secret, "first", own, said)):
        raise RefusedError("the process at this address is not the first one of this run")


def welcome(connection: Connection, secret: bytes, check: Check) -> tuple[int, str]:
    """Lets another process take part in a run; returns its number and name.

    Args:
      connection: the connection to the other process.
      secret: what only the processes of the run know.
      check: returns why not to take a process with this number, name and facts; `None` to take it.

    Raises:
      RefusedError: it is not taken, and has heard why.
      EOFError, OSError, ValueError: the connection has ended, or what came is not of this protocol.
    """
    own = secrets.token_hex(16)
    connection.send({"nonce": own})
    heard = connection.receive(_MOST_UNKNOWN)
    said = _checked(heard)
    if hmac.compare_digest(_text(heard, "proof").encode(), _proof(secret, "other", own, said)):
        process, name = said["process"], said["name"]
        reason = check(process, name, said["facts"])
    else:
        process, name, reason = 0, "", "it does not know the secret of this run"
    if reason is not None:
        connection.send({"refused": reason})
        raise RefusedError(reason)
    connection.send({"proof": _proof(secret, "first", _text(said, "nonce"), said).decode()})
    return process, name


def _checked(heard: Any) -> dict[str, Any]:
    """Returns what a process says of itself; its types are checked before anything is done with it."""
    name, nonce = _text(heard, "name"), _text(heard, "nonce")
    process, facts = heard.get("process"), heard.get("facts")
    plain = isinstance(facts, dict) and all(isinstance(one, str) for one in facts.values())
    if type(process) is not int or not plain:
        raise ValueError("what a process says of itself is malformed")
    return {"process": process, "name": name, "facts": facts, "nonce": nonce}


def _proof(secret: bytes, role: str, nonce: str, said: Any) -> bytes:
    text = json.dumps([role, nonce, said], sort_keys=True)
    return hmac.digest(secret, text.encode(), "sha256").hex().encode()


def _framed(value: Any) -> bytes:
    data = json.dumps(value).encode()
    if len(data) > MOST_BYTES:
        raise ValueError(f"a value must have at most {MOST_BYTES} bytes as JSON, got {len(data)}")
    return _LENGTH.pack(len(data)) + data


def _text(value: Any, name: str) -> str:
    text = value.get(name) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"a frame must have {name}, got none")
    return text
