"""Defines what `Engine.submit` returns: a handle on one request, for any thread and for `asyncio`."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from jaxspec.core import validate
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.text.result import Span, TextResult


class CancelledError(RuntimeError):
    """Reports that a request was cancelled, or that its engine was closed, before its text was complete.

    Example:
        >>> engine = jaxspec.Engine(target, "ngram", slots=2, capacity=32)
        >>> handle = engine.submit("the sea", max_new_tokens=8)
        >>> handle.cancel()
        >>> engine.close()
        >>> handle.result()
        Traceback (most recent call last):
        ...
        jaxspec.serving.handle.CancelledError: the request was cancelled
    """


class QueueFullError(RuntimeError):
    """Reports that as many requests are waiting as may; the same request may be taken later.

    Example:
        >>> issubclass(jaxspec.serving.QueueFullError, RuntimeError)
        True
    """


class Piece(NamedTuple):
    """Holds text that one turn of the engine completed.

    Attributes:
      text: the text.
      spans: the text of each token since the piece before, with its source; empty if a grammar on the host chose them.

    Example:
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     result = engine.submit("the sea", max_new_tokens=8, temperature=0).result()
        >>> jaxspec.serving.Piece(result.text, result.spans).text == result.text
        True
    """

    text: str
    spans: tuple[Span, ...]


class Handle:
    """Follows one request: yields its text in pieces, and has its result. All methods may be called by any thread.

    Attributes:
      reused_tokens: the number of tokens of the prompt that were not fed, as an earlier text begins with them.
      queue_seconds: the seconds until its prompt was taken up; `None` before that.
      prompt_seconds: the seconds in which its prompt was fed, neighbors included; `None` before it has a slot.
      prompt_scores: the log-probabilities of the prompt's tokens, once there is a result, if they were asked for.

    Example:
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     handle = engine.submit("the sea", max_new_tokens=8, temperature=0)
        ...     "".join(handle) == handle.result().text
        True
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        """Creates the handle of a request; `cancel` asks the engine to drop it."""
        self._cancel = cancel
        self.reused_tokens = 0
        self.queue_seconds: float | None = None
        self.prompt_seconds: float | None = None
        self.prompt_scores: PromptScores | None = None
        self._pieces: list[Piece] = []
        self._pending: tuple[Span, ...] = ()
        self._end = threading.Event()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], object]] = []
        self._result: TextResult | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the text is complete, or the request has failed."""
        return self._end.is_set()

    def cancel(self) -> None:
        """Drops the request; nothing happens if it has ended. Its slot is free after the current rounds."""
        self._cancel()

    def result(self, timeout: float | None = None) -> TextResult:
        """Waits for the result.

        Args:
          timeout: seconds to wait; `None` means without limit, and a number below 0 not to wait.

        Raises:
          TypeError, ValueError: `timeout` is not a number, or larger than a thread can wait.
          TimeoutError: the result did not come in time, or the time limit of the request was over.
          CancelledError: the request was cancelled.
          Exception: that of the request, such as `FloatingPointError` if the model's logits are not finite.
        """
        if timeout is not None:
            validate.in_range("result", timeout=(timeout, -threading.TIMEOUT_MAX, threading.TIMEOUT_MAX))
        if not self._end.wait(timeout and max(timeout, 0)):
            raise TimeoutError(f"the result did not come within {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __iter__(self) -> Iterator[str]:
        """Yields the text in pieces, from its beginning; raises as `result` does."""
        place = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=place: len(self._pieces) > seen or self.done)
                new, ended = self._pieces[place:], self.done
            place += len(new)
            yield from (piece.text for piece in new)
            if ended and place == len(self._pieces):
                self.result()
                return

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yields the text in pieces without blocking the event loop."""
        async for piece in self.pieces():
            yield piece.text

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields the pieces with their tokens, without blocking the event loop; raises as `result` does."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody reads
                loop.call_soon_threadsafe(news.set)

        self._listen(tell)
        place = 0
        while True:
            news.clear()
            with self._changed:
                new, ended = self._pieces[place:], self.done
            place += len(new)
            for piece in new:
                yield piece
            if ended and place == len(self._pieces):
                self.result()
                return
            await news.wait()

    async def wait(self) -> TextResult:
        """Waits for the result without blocking the event loop; raises as `result` does."""
        async for _ in self:
            pass
        return self.result()

    def push(self, text: str, spans: Sequence[Span] = ()) -> None:
        """Adds text and its tokens; for the engine. Tokens without text come with the next piece."""
        with self._changed:
            self._pending += tuple(spans)
            if not text:
                return
            self._pieces.append(Piece(text, self._pending))
            self._pending = ()
            self._changed.notify_all()
        self._tell()

    def end(self, outcome: TextResult | BaseException) -> None:
        """Ends the request with a result or an error; for the engine."""
        with self._changed:
            if isinstance(outcome, TextResult):
                self._result = outcome
            else:
                self._error = outcome
            self._end.set()
            self._changed.notify_all()
        self._tell()

    def _listen(self, listener: Callable[[], object]) -> None:
        with self._changed:
            self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
