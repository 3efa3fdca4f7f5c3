"""Says which process of a run is lost: it has been silent for too long, or a command takes it too long.

heard     .    .    .    .                    a sign of life at least every 5 s
silent                     . . . 15 s         died, stopped or unreachable
command        sent ------------ 15 s         hangs; the time of compilations does not count
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import jax

# Seconds between signs of life, and the number of them that may be missing.
BEAT_SECONDS, MOST_MISSED = 5.0, 3
# Seconds that a command may take, compilations not included.
COMMAND_SECONDS = 15.0
# The beginning of the names of JAX's events while it traces and compiles.
_COMPILES = "/jax/core/compile/"


@dataclasses.dataclass
class _Process:
    """Holds what is known of a process.

    Attributes:
      name: its number, host and process id, for messages.
      heard: when it gave the last sign of life; `None` if none is needed.
      begun: the number of the newest command that it has begun.
      done: the number of the newest command that it has completed.
      since: when the oldest command that it has not completed became its next one, by its own time (`own`).
      compiled: the seconds for which it has compiled.
    """

    name: str
    heard: float | None
    begun: int = 0
    done: int = 0
    since: float = 0.0
    compiled: float = 0.0

    def own(self, now: float) -> float:
        """Returns a time that stands still while the process compiles."""
        return now - self.compiled


class Liveness:
    """Follows the processes of a run by their signs of life and the commands that they complete. Any thread may call.

    Example:
        >>> from jaxspec.serving.liveness import Liveness
        >>> now = [0.0]
        >>> alive = Liveness({1: "process 1 (b)"}, clock=lambda: now[0])
        >>> alive.lost() is None
        True
        >>> now[0] = 15.0
        >>> alive.lost()
        'process 1 (b) has been silent for 15 s: it has died, is stopped or cannot be reached'
    """

    def __init__(
        self,
        names: Mapping[int, str],
        *,
        own: int | None = None,
        seconds: float = COMMAND_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the time.

        Args:
          names: what each process is called in messages, by its number.
          own: the number of this process, which gives no signs of life to itself; `None` if it gets no commands.
          seconds: the time that a command may take.
          clock: returns seconds.
        """
        self._clock, self._seconds, self._lock = clock, seconds, threading.Lock()
        now = clock()
        self._processes = {
            number: _Process(name, None if number == own else now, since=now) for number, name in names.items()
        }
        self._sent: dict[int, str] = {}
        self._newest = 0

    def sent(self, number: int, what: str) -> None:
        """Records that a command was sent to all processes."""
        with self._lock:
            self._sent[number], self._newest = what, number
            for one in self._processes.values():
                if one.done == number - 1:
                    one.since = one.own(self._clock())

    def heard(self, process: int, *, begun: int = 0, done: int = 0, compiled: float = 0.0) -> None:
        """Records a sign of life.

        Args:
          process: its number.
          begun: the number of the newest command that it has begun.
          done: the number of the newest command that it has completed.
          compiled: the seconds for which it has compiled, with the current compilation.
        """
        with self._lock:
            one = self._processes[process]
            if one.heard is not None:
                one.heard = self._clock()
            one.begun, one.compiled = max(one.begun, begun), max(one.compiled, compiled)
            if done > one.done:
                one.done, one.since = done, one.own(self._clock())
                least = min(each.done for each in self._processes.values())
                self._sent = {number: what for number, what in self._sent.items() if number > least}

    def excuse(self, seconds: float) -> None:
        """Adds time for all, as this process was stopped itself, and has not heard what they sent."""
        with self._lock:
            for one in self._processes.values():
                one.since += seconds
                if one.heard is not None:
                    one.heard += seconds

    def lost(self) -> str | None:
        """Returns which process is lost and why; `None` if there is none."""
        with self._lock:
            now = self._clock()
            for one in self._processes.values():
                if one.heard is not None and now - one.heard >= BEAT_SECONDS * MOST_MISSED:
                    silent = f"{one.name} has been silent for {now - one.heard:.0f} s"
                    return f"{silent}: it has died, is stopped or cannot be reached"
            late = [one for one in self._processes.values() if one.done < self._newest]
            # While one of them compiles, it is in time, and the others may wait for it.
            if not late or any(one.own(now) - one.since < self._seconds for one in late):
                return None
            # The others wait on their devices for the one that hangs; this process may be one of them.
            least = min((one.done, one.begun) for one in late)
            slowest = [one for one in late if (one.done, one.begun) == least]
            named = [one for one in slowest if one.heard is not None] or slowest
            number = least[0] + 1
            names = " or ".join(one.name for one in named)
            command = f"command {number} ({self._sent[number]})"
            return f"{names} hangs: it has not completed {command} within {self._seconds:.0f} s (--deadline)"


class CompileTime:
    """Measures the time in which any thread of this process traces, compiles, or does what else takes any time.

    Example:
        >>> from jaxspec.serving.liveness import CompileTime
        >>> measured = CompileTime()
        >>> _ = jax.jit(lambda x: x + 1.25)(jnp.ones(3))
        >>> measured.seconds() > 0
        True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins at 0; `clock` returns seconds."""
        self._clock, self._lock = clock, threading.Lock()
        self._running, self._began, self._seconds = 0, 0.0, 0.0
        # The first is called at the beginning of a phase, the second at its end.
        self._begins = lambda event, value, **_: self.add(event, 1)
        self._ends = lambda event, duration_secs, **_: self.add(event, -1)
        jax.monitoring.register_scalar_listener(self._begins)
        jax.monitoring.register_event_duration_secs_listener(self._ends)

    def close(self) -> None:
        """Measures no more."""
        with contextlib.suppress(AssertionError, ValueError):  # closed before, or a test has cleared all listeners
            jax.monitoring.unregister_scalar_listener(self._begins)
            jax.monitoring.unregister_event_duration_listener(self._ends)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the time of a block too."""
        self.add(_COMPILES, 1)
        try:
            yield
        finally:
            self.add(_COMPILES, -1)

    def add(self, event: str, number: int) -> None:
        """Records that a phase begins (1) or ends (-1)."""
        if not event.startswith(_COMPILES):
            return
        with self._lock:
            before, self._running = self._running, max(0, self._running + number)
            if before == 0 and self._running:
                self._began = self._clock()
            elif before and not self._running:
                self._seconds += self._clock() - self._began

    def seconds(self) -> float:
        """Returns the seconds so far, those of an unfinished phase included."""
        with self._lock:
            return self._seconds + (self._clock() - self._began if self._running else 0.0)
