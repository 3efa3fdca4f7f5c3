"""Compiles programs in a thread, so that requests are decoded meanwhile."""

import logging
import threading
from collections.abc import Callable, Hashable, Iterator

_LOGGER = logging.getLogger("jaxspec")
# Seconds after which a thread that has only tasks for later looks again whether nothing is decoded.
_LOOK_SECONDS = 0.2

# Compiles programs, and yields after each.
Task = Callable[[], Iterator[object]]


class Compiler:
    """Runs tasks one after the other in a thread, each once: those that requests wait for, then those for later.

    A task that fails counts as done: the error comes again where the program is called, in the request that needs it.

    Example:
        >>> from jaxspec.serving.compiler import Compiler
        >>> compiler, done = Compiler(lambda: None), []
        >>> compiler.has("key", lambda: iter([done.append("compiled")]))
        False
        >>> compiler.close()
    """

    def __init__(self, changed: Callable[[], None], idle: Callable[[], bool] = lambda: True) -> None:
        """Takes a function to call after each task, and one that says whether tasks for later may run now."""
        self._changed, self._idle = changed, idle
        self._news = threading.Condition()
        self._tasks: dict[Hashable, Task] = {}
        self._later: dict[Hashable, Task] = {}
        self._asked: set[Hashable] = set()
        self._done: set[Hashable] = set()
        self._thread: threading.Thread | None = None
        self._closing = False

    def has(self, key: Hashable, task: Task) -> bool:
        """Returns whether the task of a key is done; queues it if it is new, or was queued for later."""
        self.ask(key, task)
        return key in self._done

    def ask(self, key: Hashable, task: Task, *, later: bool = False) -> None:
        """Queues a task if it is new; with `later`, after all that are needed, and while nothing is decoded."""
        with self._news:
            if key in self._asked and (later or key not in self._later):
                return
            self._later.pop(key, None)
            (self._later if later else self._tasks)[key] = task
            self._asked.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="jaxspec-compiler", daemon=True)
                self._thread.start()
            self._news.notify()

    def asked(self, key: Hashable) -> bool:
        """Returns whether the task of a key was queued, and not for later."""
        return key in self._asked and key not in self._later

    def done(self, key: Hashable) -> bool:
        """Returns whether the task of a key is done."""
        return key in self._done

    @property
    def busy(self) -> bool:
        """Whether tasks are missing."""
        return len(self._done) < len(self._asked)

    def close(self) -> None:
        """Ends the thread after the program that it is compiling, and waits for it."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            key, task, later = entry
            try:
                for _ in task():
                    if self._closing:
                        return
                    if later and (self._tasks or not self._idle()):  # what it has compiled so far is kept
                        break
                else:
                    later = False
            except Exception as error:  # anything that a trace of a caller's class may raise
                _LOGGER.debug("a program was not compiled ahead: %s", error)
                later = False
            if later:
                with self._news:
                    self._later = {key: task, **self._later}
                continue
            self._done.add(key)
            self._changed()

    def _next(self) -> tuple[Hashable, Task, bool] | None:
        """Waits for a task, removes it from its queue, and says whether it is for later; returns `None` at the end."""
        with self._news:
            while not self._closing:
                if tasks := self._tasks or (self._later if self._idle() else {}):
                    key = next(iter(tasks))
                    return key, tasks.pop(key), tasks is self._later
                self._news.wait(_LOOK_SECONDS if self._later else None)
            return None
