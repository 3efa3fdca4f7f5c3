"""Compiles programs in a thread, so that requests are decoded meanwhile."""

import logging
import queue
import threading
from collections.abc import Callable, Hashable, Iterator

_LOGGER = logging.getLogger("jaxspec")

# Compiles programs, and yields after each.
Task = Callable[[], Iterator[object]]


class Compiler:
    """Runs tasks one after the other in a thread, each once.

    A task that fails counts as done: the error comes again where the program is called, in the request that needs it.

    Example:
        >>> from jaxspec.serving.compiler import Compiler
        >>> compiler, done = Compiler(lambda: None), []
        >>> compiler.has("key", lambda: iter([done.append("compiled")]))
        False
        >>> compiler.close()
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Takes a function to call after each task."""
        self._changed = changed
        self._tasks: queue.SimpleQueue[tuple[Hashable, Task] | None] = queue.SimpleQueue()
        self._asked: set[Hashable] = set()
        self._done: set[Hashable] = set()
        self._thread: threading.Thread | None = None
        self._closing = False

    def has(self, key: Hashable, task: Task) -> bool:
        """Returns whether the task of a key is done; queues it if it is new."""
        self.ask(key, task)
        return key in self._done

    def ask(self, key: Hashable, task: Task) -> None:
        """Queues a task if it is new."""
        if key in self._asked:
            return
        self._asked.add(key)
        self._tasks.put((key, task))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jaxspec-compiler", daemon=True)
            self._thread.start()

    def asked(self, key: Hashable) -> bool:
        """Returns whether the task of a key was queued."""
        return key in self._asked

    def done(self, key: Hashable) -> bool:
        """Returns whether the task of a key is done."""
        return key in self._done

    @property
    def busy(self) -> bool:
        """Whether tasks are missing."""
        return len(self._done) < len(self._asked)

    def close(self) -> None:
        """Ends the thread after the program that it is compiling, and waits for it."""
        self._closing = True
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._tasks.get()) is not None and not self._closing:
            key, task = entry
            try:
                for _ in task():
                    if self._closing:
                        return
            except Exception as error:  # anything that a trace of a caller's class may raise
                _LOGGER.debug("a program was not compiled ahead: %s", error)
            self._done.add(key)
            self._changed()
