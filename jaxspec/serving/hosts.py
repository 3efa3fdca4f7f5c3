"""Connects the processes of a run: the first one sends commands, and each of them notices if another one is lost.

first      sends 1 feed    sends 2 advance   .              .          end
others     1 done          2 begun          2 done         .          the iterator ends
all        a sign of life every 5 s, and each second in which the process compiles, with the seconds of that
lost       closed, silent for 15 s, or late with a command: the run ends on all of them, with a message that names it
"""

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxspec.serving.liveness import BEAT_SECONDS, COMMAND_SECONDS, Liveness
from jaxspec.serving.wire import Connection

# Seconds after which the processes are looked at again.
_LOOK_SECONDS = 1.0
# Seconds for which the others may take to close their connections at the end.
_CLOSE_SECONDS = 1.0
# Seconds after an error of the first process in which another one must come to its end, not wait on its devices.
_END_SECONDS = 5.0
# The most characters of an error that are sent.
_MOST_CHARACTERS = 1000
_THREAD = "jaxspec-hosts"
# The exit status of a process that ends since another one is lost.
LOST_STATUS = 70
_FIRST = "process 0"


class Command(NamedTuple):
    """Holds a command to the other processes.

    Attributes:
      number: counts commands, from 1.
      name: what to do.
      arguments: values that JSON has.
    """

    number: int
    name: str
    arguments: list[Any]


def exit_lost(reason: str) -> None:
    """Ends this process at once: a thread may wait for ever on a device, which no exception reaches."""
    # First, since JAX ends processes without its coordinator too, by a message that names none.
    os.write(2, f"error: the run on several processes ends: {reason}\n".encode())
    os._exit(LOST_STATUS)


def name_of(process: int) -> str:
    """Returns what this process is called in messages."""
    return f"process {process} ({socket.gethostname()}, pid {os.getpid()})"


class _Side:
    """Holds what both sides have: signs of life, and the end of a run in which a process is lost."""

    def __init__(
        self, alive: Liveness, compiled: Callable[[], float], clock: Callable[[], float], end: Callable[[str], None]
    ) -> None:
        self._alive, self._compiled, self._clock, self._end = alive, compiled, clock, end
        self._beaten, self._told, self._over, self._lock = clock(), 0.0, threading.Event(), threading.Lock()
        self.reason: str | None = None

    def look(self) -> None:
        """Sends a sign of life if it is time or the process compiles, and ends the run if a process is lost."""
        compiled = self._compiled()
        if self._clock() - self._beaten >= BEAT_SECONDS or compiled != self._told:
            self._beaten, self._told = self._clock(), compiled
            self._beat()
        self._note()
        if not self._over.is_set() and (reason := self._alive.lost()) is not None:
            self._lose(reason)

    def start(self) -> None:
        """Looks each second, in a thread."""

        def run() -> None:
            before = self._clock()
            while not self._over.wait(_LOOK_SECONDS):
                now = self._clock()
                if (pause := now - before - _LOOK_SECONDS) > BEAT_SECONDS:
                    self._alive.excuse(pause)
                before = now
                self.look()

        threading.Thread(target=run, name=_THREAD, daemon=True).start()

    def wait_for_loss(self, seconds: float) -> None:
        """Waits for the reason of an error of a device, which is likely to be the loss of a process.

        Raises:
          RuntimeError: a process is lost.
        """
        self._over.wait(seconds)
        self._check()

    def _check(self) -> None:
        if self._over.is_set():
            raise RuntimeError(f"the run on several processes has ended: {self.reason or 'it is closed'}")

    def _lose(self, reason: str) -> None:
        """Ends the run; only the first reason counts."""
        with self._lock:
            if self._over.is_set():
                return
            self.reason = reason
            self._over.set()
        self._part(reason)
        self._end(reason)
        self._wake()

    def _beat(self) -> None:
        raise NotImplementedError

    def _note(self) -> None:
        """Records the progress of this process."""

    def _part(self, reason: str) -> None:
        """Sends the reason to the others, if this is the first process."""

    def _wake(self) -> None:
        """Wakes threads that wait, if this process has not ended."""
        raise NotImplementedError


class Leader(_Side):
    """Sends commands to the other processes, and watches them; for the first process.

    Attributes:
      reason: why the run has ended; `None` otherwise.
    """

    def __init__(
        self,
        others: Mapping[int, tuple[str, Connection]],
        *,
        seconds: float = COMMAND_SECONDS,
        compiled: Callable[[], float] = float,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[str], None] = exit_lost,
    ) -> None:
        """Begins to listen to the processes.

        Args:
          others: the name and connection of each.
          seconds: the time that a command may take, compilations not included.
          compiled: returns the seconds for which this process has compiled.
          clock: returns seconds.
          end: ends this process; called with the reason if one is lost.
        """
        names = {0: name_of(0), **{number: name for number, (name, _) in others.items()}}
        super().__init__(Liveness(names, own=0, seconds=seconds, clock=clock), compiled, clock, end)
        self._names, self._connections = names, {number: one for number, (_, one) in others.items()}
        self._begun = self._done = 0
        self._said: dict[int, dict[int, str]] = {}  # what each process said of each command that not all have done
        self._refused: dict[int, str] = {}  # why a process does not do a command
        self._changed = threading.Condition()
        start = lambda number: threading.Thread(target=self._listen, args=(number,), name=_THREAD, daemon=True)  # noqa: E731
        self._listeners = [start(number) for number in self._connections]
        for thread in self._listeners:
            thread.start()

    def tell(self, name: str, *arguments: Any) -> int:
        """Sends a command to all others; returns its number.

        Raises:
          RuntimeError: the run has ended.
          TypeError, ValueError: an argument is not of JSON, or too large.
        """
        number = self._begun + 1
        frame = {"command": number, "name": name, "with": arguments}
        for other, connection in self._connections.items():
            try:
                connection.send(frame)
            except OSError:
                self._lose(self._closed(other))
        self._check()
        self._begun = number
        self._alive.sent(number, name)
        return number

    def done(self, number: int, said: str) -> None:
        """Records that this process has done a command, and what it says of the result."""
        self._done = number
        self._note()
        self._hear(0, number, said)

    def agree(self, number: int) -> str | None:
        """Waits until all have done all commands up to this one, and said the same of them.

        Returns:
          Why a process has refused this one; `None` if none has.

        Raises:
          RuntimeError: the run has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over.is_set() or not any(one <= number for one in self._said))
            refused = self._refused.pop(number, None)
        self._check()
        return refused

    def close(self, error: str | None = None) -> None:
        """Ends the run without loss; with an error, the others raise it."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send({"end": None if error is None else error[:_MOST_CHARACTERS]})
        self._hang_up()

    def _listen(self, other: int) -> None:
        try:
            while True:
                frame = self._connections[other].receive()
                begun, done = int(frame.get("begun", 0)), int(frame.get("done", 0))
                self._alive.heard(other, begun=begun, done=done, compiled=float(frame["compiled"]))
                if "failed" in frame:
                    self._lose(f"{self._names[other]} has failed: {frame['failed']}")
                elif done:
                    self._hear(other, done, str(frame["said"]), frame.get("refused"))
        except (EOFError, OSError):
            self._lose(self._closed(other))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._lose(f"{self._names[other]} has said what is not of this protocol: {error}")

    def _closed(self, other: int) -> str:
        return f"{self._names[other]} has ended, or closed its connection"

    def _hear(self, process: int, number: int, said: str, refused: str | None = None) -> None:
        with self._changed:
            of_all = self._said.setdefault(number, {})
            of_all[process] = said
            if refused is not None:
                self._refused[number] = f"{self._names[process]}: {refused}"
            differ = None
            if number not in self._refused:
                differ = next((one for one, other in of_all.items() if of_all.get(0, other) != other), None)
            if differ is None and len(of_all) == len(self._names):
                del self._said[number]
                self._changed.notify_all()
        if differ is not None:
            own, other = of_all[0], of_all[differ]
            name = self._names[differ]
            self._lose(f"{name} differs from process 0 after command {number}: got {other}, expected {own}")

    def _beat(self) -> None:
        for other, connection in self._connections.items():
            try:
                connection.try_send({"beat": self._compiled()})
            except OSError:
                self._lose(self._closed(other))

    def _note(self) -> None:
        self._alive.heard(0, begun=self._begun, done=self._done, compiled=self._compiled())

    def _part(self, reason: str) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.try_send({"lost": reason})
        self._hang_up()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _hang_up(self) -> None:
        """Closes the connections after the others have: what they have not read yet might not arrive otherwise."""
        until = time.monotonic() + _CLOSE_SECONDS
        for thread in self._listeners:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0))
        for connection in self._connections.values():
            connection.close()


class Follower(_Side):
    """Receives the commands of the first process, and watches it."""

    def __init__(
        self,
        connection: Connection,
        *,
        compiled: Callable[[], float] = float,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[str], None] = exit_lost,
    ) -> None:
        """Begins to listen to the first process.

        Args:
          connection: the connection to it.
          compiled: returns the seconds for which this process has compiled.
          clock: returns seconds.
          end: ends this process; called with the reason if the first one or another one is lost.
        """
        super().__init__(Liveness({0: _FIRST}, clock=clock), compiled, clock, end)
        self._connection = connection
        self._begun = self._done = 0
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._error: str | None = None
        self._failed: str | None = None
        self._at_end = threading.Event()
        threading.Thread(target=self._listen, name=_THREAD, daemon=True).start()

    def __iter__(self) -> Iterator[Command]:
        """Yields commands until the first process ends the run.

        Raises:
          RuntimeError: it has failed.
        """
        while (command := self._commands.get()) is not None:
            self._begun = command.number
            yield command
        self._at_end.set()
        if self._error is not None or self.reason is not None:
            raise RuntimeError(self.reason or f"{_FIRST} has failed: {self._error}")

    def done(self, number: int, said: str, *, refused: str | None = None) -> None:
        """Reports that this process has done a command, and what it says of the result; or why it refuses it."""
        self._done = number
        frame = {"done": number, "begun": number, "said": said, "compiled": self._compiled()}
        self._send(frame if refused is None else frame | {"refused": refused[:_MOST_CHARACTERS]})

    def fail(self, error: str) -> None:
        """Reports that this process cannot go on. The first one then ends the connection, and may not say why."""
        self._failed = error[:_MOST_CHARACTERS]
        self._send({"failed": self._failed, "compiled": self._compiled()})

    def close(self) -> None:
        """Ends the connection, without loss, and the iterator."""
        self._over.set()
        self._wake()

    def _listen(self) -> None:
        try:
            while True:
                frame = self._connection.receive()
                self._alive.heard(0)
                if "command" in frame:
                    self._commands.put(Command(int(frame["command"]), str(frame["name"]), list(frame["with"])))
                elif "lost" in frame:
                    self._lose(str(frame["lost"]))
                elif "end" in frame:
                    self._error = frame["end"]
                    self.close()
                    if self._error is not None and not self._at_end.wait(_END_SECONDS):
                        self._end(f"{_FIRST} has failed: {self._error}")
                    return
        except (EOFError, OSError):
            closed = f"{_FIRST} has ended, or closed its connection"
            self._lose(closed if self._failed is None else f"this process has failed: {self._failed}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._lose(f"{_FIRST} has said what is not of this protocol: {error}")

    def _send(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # `_listen` hears of it too
            self._connection.send(value)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.try_send({"begun": self._begun, "compiled": self._compiled()})

    def _wake(self) -> None:
        self._commands.put(None)
        self._connection.close()
