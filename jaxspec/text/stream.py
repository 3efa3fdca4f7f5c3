"""Streams text while it is decoded, with a loop over rounds on the host."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from jaxspec.core.processing import processors_of
from jaxspec.core.state import GenerationState
from jaxspec.decoding.rounds import Host, Rounds
from jaxspec.grammar.host import HostMasks, RowMatchers
from jaxspec.text.request import TextRequest
from jaxspec.text.result import Span, TextResult, Timing, collect, new_rows, to_html

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class TextStream(Iterator[Piece], Generic[Piece, Result]):
    """Yields pieces of text round by round; joined, they are the text of the result.

    For a single prompt the pieces are strings, and the result is a `TextResult`. For a list of prompts the pieces are
    `(row, piece)`, and the result is a list. Decoding starts with the first piece.

    Leaving a `for` loop early closes the stream, like the end of a `with` block and `close()`: its caches are freed,
    decoding stops, and there is no result. Call `next` to read some pieces now and others later.

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
        finally:  # leaving a loop drops this generator
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops decoding and frees the caches; a stream that has ended keeps its result.

        Any thread may call it: if another thread is decoding, the stream ends after that round.
        """
        self._closed = True
        with contextlib.suppress(ValueError):  # another thread is running it, and will see that it is closed
            self._pieces.close()

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of each prompt."""
        return self._request.prompts

    @property
    def ended(self) -> tuple[bool, ...]:
        """Whether each prompt's text is complete, including the latest piece."""
        return tuple(self._ended.tolist())

    def spans(self, row: int = 0) -> tuple[Span, ...]:
        """Returns a prompt's text so far by token, with drafted tokens and ends of rounds marked."""
        return tuple(self._rows[row].spans)

    def _repr_html_(self) -> str:
        if self._results is not None:
            return "".join(result._repr_html_() for result in self._results)
        return "".join(to_html(row.spans, (f"{len(row.ids)} tokens so far",)) for row in self._rows)

    @property
    def result(self) -> Result:
        """Result of `generate`, once the stream has ended.

        Raises:
          RuntimeError: if the stream has not ended.
        """
        if self._results is None and self._closed:
            raise RuntimeError("the stream was closed before its end, so it has no result; iterate to its end first")
        if self._results is None:
            raise RuntimeError("the stream has not ended, so it has no result; iterate to its end first")
        return cast("Result", self._results[0] if self._request.single else self._results)

    def _run(self) -> Generator[str | tuple[int, str], None, None]:
        request, tokens = self._request, 0
        rounds = Rounds(request.arguments, _Grammars(request) if request.grammars else None)
        self._ended = rounds.done.copy()
        first: tuple[float | None, int] = (None, 0)
        for emitted in rounds:
            if self._closed:
                return
            tokens += int(emitted.count.sum())
            first = (rounds.seconds, tokens) if first[0] is None else first
            each = zip(self._rows, emitted.tokens, emitted.count, emitted.accepted, rounds.done, strict=True)
            pieces = [
                row.push(ids[:n].tolist(), [place < int(drafts) for place in range(n)], last=bool(ended))
                for row, ids, n, drafts, ended in each
            ]
            rounds.end(np.array([row.stopped for row in self._rows]))
            for index, piece in enumerate(pieces):
                # Row by row: rows whose last piece has not been yielded have not ended.
                self._ended[index] = rounds.done[index]
                if piece:
                    yield piece if request.single else (index, piece)
        self._results = collect(request, self._rows, rounds.finish(), Timing(rounds.seconds, tokens, *first))


class _Grammars(Host):
    """Follows the grammars of a request on the host, and writes the allowed tokens into the states."""

    reads_drafts = True

    def __init__(self, request: TextRequest) -> None:
        vocab_size = request.arguments.target.vocab_size
        self._matchers = RowMatchers(request.grammars, request.tokenizer, vocab_size, request.stop_tokens)
        found = enumerate(processors_of(request.arguments.sampling))
        self._place, self._masks = next((place, one) for place, one in found if isinstance(one, HostMasks))

    def before(self, state: GenerationState) -> GenerationState:
        return self._matchers.after_text(state, self._place)

    def after_drafts(self, state: GenerationState, tokens: Any, valid: Any, parents: Any) -> GenerationState:
        return self._matchers.after_drafts(self._masks, state, self._place, tokens, valid, parents)

    def after(self, tokens: np.ndarray, count: np.ndarray) -> None:
        self._matchers.commit(tokens, count)
