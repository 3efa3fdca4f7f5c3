"""Streams text while it is decoded: a loop on the host over rounds."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, Self, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Bool

from jaxspec.core.model import Model
from jaxspec.core.processing import processors_of
from jaxspec.core.state import GenerationState, RoundInfo
from jaxspec.decoding.flattened import jit_of
from jaxspec.decoding.host_rounds import HostRounds
from jaxspec.decoding.steps import finish, start, step
from jaxspec.drafters.base import Drafter
from jaxspec.grammar.host import HostMasks, RowMatchers
from jaxspec.text.request import TextRequest
from jaxspec.text.result import RowText, TextResult, Timing, collect, new_rows
from jaxspec.text.spans import Span, to_html
from jaxspec.verifiers.base import Verifier

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class TextStream(Iterator[Piece], Generic[Piece, Result]):
    """Yields pieces of text round by round; together they are the text of the result.

    For one prompt the pieces are strings, and the result is a `TextResult`; for a list of prompts they are
    `(row, piece)`, and the result is a list. Nothing is decoded before the first piece is asked for.

    Leaving a `for` loop early closes it, as the end of a `with` block and `close()` do: its caches are freed, nothing
    more is decoded, and there is no result. Call `next` to take some pieces now and others later.

    Example:
        >>> decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        >>> stream = decoder.stream("the sea", max_new_tokens=8, temperature=0)
        >>> "".join(piece for piece in stream) == stream.result.text
        True
        >>> stream.result.acceptance_rate <= 1
        True
        >>> with decoder.stream("the sea", max_new_tokens=8, temperature=0) as stream:
        ...     first = next(stream)
        >>> list(stream)
        []
    """

    def __init__(self, request: TextRequest) -> None:
        """Starts a stream; use `SpeculativeDecoder.stream`."""
        self._request = request
        self._rows = new_rows(request)
        self._ended = np.zeros(len(self._rows), np.bool_)
        self._results: list[TextResult] | None = None
        self._closed = False
        self._pieces = self._run()

    def __next__(self) -> Piece:
        return cast("Piece", next(self._pieces))  # strings for one prompt, pairs for a list

    def __iter__(self) -> Iterator[Piece]:
        try:
            yield from cast("Iterator[Piece]", self._pieces)
        finally:  # a loop that is left drops this generator
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops decoding and frees the caches; a stream that has ended keeps its result.

        Any thread may call it: where another one decodes, the stream ends after that round.
        """
        self._closed = True
        with contextlib.suppress(ValueError):  # another thread is in it, and sees that it is closed
            self._pieces.close()

    @property
    def prompts(self) -> list[list[int]]:
        """The token ids of each prompt."""
        return self._request.prompts

    @property
    def ended(self) -> tuple[bool, ...]:
        """Whether each prompt has all its text, the latest piece included."""
        return tuple(self._ended.tolist())

    def spans(self, row: int = 0) -> tuple[Span, ...]:
        """Returns a prompt's text so far by tokens, with which of them were drafted and where rounds ended."""
        return tuple(self._rows[row].spans)

    def _repr_html_(self) -> str:
        if self._results is not None:
            return "".join(result._repr_html_() for result in self._results)
        return "".join(to_html(row.spans, (f"{len(row.ids)} tokens so far",)) for row in self._rows)

    @property
    def result(self) -> Result:
        """The result of `generate`, once the stream has ended.

        Raises:
          RuntimeError: if it has not.
        """
        if self._results is None and self._closed:
            raise RuntimeError("the stream was closed before its end, so it has no result; iterate to its end first")
        if self._results is None:
            raise RuntimeError("the stream has not ended, so it has no result; iterate to its end first")
        return cast("Result", self._results[0] if self._request.single else self._results)

    def _run(self) -> Generator[str | tuple[int, str], None, None]:
        single, arguments, clock = self._request.single, self._request.arguments, _Clock()
        with clock:
            state = start(arguments)
            done = np.asarray(state.done)
        self._ended = np.array(done)
        advance = _advance(self._request)
        while not done.all():
            with clock:
                state, info = advance(state)
                tokens, count, accepted, done = jax.device_get((info.tokens, info.count, info.accepted, state.done))
            if self._closed:
                return
            clock.count(int(count.sum()))
            pieces = [
                row.push(ids[:n].tolist(), [place < int(drafts) for place in range(n)], last=bool(ended))
                for row, ids, n, drafts, ended in zip(self._rows, tokens, count, accepted, done, strict=True)
            ]
            state, done = _end_stopped(state, done, self._rows)
            for index, piece in enumerate(pieces):
                # Not for all rows at once: those whose last piece is yet to come have not ended.
                self._ended[index] = done[index]
                if piece:
                    yield piece if single else (index, piece)
        generation = finish(state, lossless=arguments.verifier.lossless)
        self._results = collect(self._request, self._rows, generation, clock.timing())


def _advance(request: TextRequest) -> Callable[[GenerationState], tuple[GenerationState, RoundInfo]]:
    """Returns what runs a round: one program, or passes between which the host follows a grammar."""
    arguments = request.arguments
    models = (arguments.target, arguments.drafter, arguments.verifier)
    if not request.grammars:
        advance_one = jit_of(_step, models, donate=("state",))
        return lambda state: advance_one(state=state)
    found = processors_of(arguments.sampling)
    place, masks = next((place, one) for place, one in enumerate(found) if isinstance(one, HostMasks))
    matchers = RowMatchers(request.grammars, request.tokenizer, arguments.target.vocab_size, request.stop_tokens)

    rounds = HostRounds(*models)

    def advance(state: GenerationState) -> tuple[GenerationState, RoundInfo]:
        state = matchers.after_text(state, place)
        inform = lambda state, *drafts: matchers.after_drafts(masks, state, place, *drafts)  # noqa: E731
        state, info = rounds.run(state, inform)
        matchers.commit(*jax.device_get((info.tokens, info.count)))
        return state, info

    return advance


def _step(target: Model, drafter: Drafter, verifier: Verifier, state: GenerationState) -> Any:
    return step(target, drafter, verifier, state, lossy=True)


def _end_stopped(
    state: GenerationState, done: Bool[np.ndarray, "b"], rows: list[RowText]
) -> tuple[GenerationState, Bool[np.ndarray, "b"]]:
    """Freezes the rows that a stop string has ended, so that they take part in no further round."""
    stopped = np.array([row.stopped for row in rows])
    if not np.any(stopped & ~done):
        return state, done
    return dataclasses.replace(state, done=state.done | stopped), done | stopped


class _Clock:
    """Adds up the seconds spent in its `with` blocks, those up to the first count also by themselves."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._entered = 0.0
        self._tokens = 0
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds += time.perf_counter() - self._entered

    def count(self, tokens: int) -> None:
        self._tokens += tokens
        if self._first is None:
            self._first = (self._seconds, tokens)

    def timing(self) -> Timing:
        first_seconds, first_tokens = self._first or (None, 0)
        return Timing(self._seconds, self._tokens, first_seconds, first_tokens)
