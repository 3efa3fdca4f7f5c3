"""Holds the prompt that an engine is feeding, some chunks at a time."""

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jaxspec.core.model import Model
from jaxspec.core.prefill import in_chunks
from jaxspec.core.results import Generation, Status
from jaxspec.core.state import GenerationState
from jaxspec.decoding.feeding import Feeding, feed_scored, feed_some, start_feeding
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.prompt_scores import PromptScores
from jaxspec.decoding.reuse import held_tokens, reuse
from jaxspec.decoding.rounds import jit_of
from jaxspec.serving.prefixes import Prefix, Prefixes, kind_of
from jaxspec.sharding.placement import to_host

_Job = TypeVar("_Job")

# The most tokens of a pass that native kernels compute one by one, for weights of any type.
_BY_TOKEN = 96


class Prompt(Generic[_Job]):
    """Feeds the prompt of one request.

    Attributes:
      job: the request.
      arguments: its arguments.
      ids: the tokens of the prompt.
      feeding: the row so far.
      left: the number of chunks that are missing.
      chunk: the number of tokens of a chunk.
      grace: the number of chunks of later prompts that may still be fed before its own.
      reused: the number of tokens that came from another text.
      done: whether the row has ended before its first token, without a budget.
      continues: whether it can begin with what a row of another text holds.
      scores: the log-probabilities of its fed tokens; `None` if they were not asked for.
    """

    def __init__(
        self,
        job: _Job,
        arguments: Arguments,
        ids: Sequence[int],
        *,
        salt: Hashable = None,
        alternatives: int | None = None,
    ) -> None:
        """Begins the row of a request; nothing is fed.

        Args:
          job: the request.
          arguments: its arguments.
          ids: the tokens of the prompt.
          salt: only texts with an equal one continue each other.
          alternatives: the number of likely tokens to report at each position of the prompt; `None` scores no prompt.
        """
        self.job, self.arguments, self.ids, self.reused = job, arguments, ids, 0
        self.feeding = start_feeding(arguments)
        left, done = jax.device_get((self.feeding.left, self.feeding.row.done))
        self.left, self.done = int(left), bool(done[0])
        target, row, self._width = arguments.target, self.feeding.row, self.feeding.width
        self.chunk = in_chunks(target, arguments.rows.prompt)[1]
        self._kind = salt, kind_of(target.traits, row.cache, row.drafter_state)
        self.continues = _continues(arguments, self.feeding) and not self.done
        self.scores: PromptScores | None = None
        if alternatives is not None:
            self.scores = PromptScores.blank(self._width, alternatives)
            self.left = -(-(len(ids) - 1) // self.chunk)  # also of a row that is to emit nothing
            self.feeding = dataclasses.replace(self.feeding, left=np.int32(self.left))
        self.grace = self.left

    def take_from(self, prefixes: Prefixes) -> None:
        """Takes the first chunks from a text that begins like the prompt, if there is one."""
        if (found := self.source(prefixes)) is not None:
            self.reuse(*found)

    def source(self, prefixes: Prefixes) -> tuple[Prefix, int] | None:
        """Returns a text that begins like the prompt, and the number of chunks to take; `None` if there is none."""
        if not self.continues or self.scores is not None:  # what is not fed has no scores
            return None
        return prefixes.find(self._kind, self.ids, self.chunk, self._width // self.chunk - 1)

    def reuse(self, prefix: Prefix, chunks: int) -> None:
        """Takes the first chunks from a text."""
        held = {"cache": prefix.cache, "drafter_state": prefix.drafter_state}
        self.feeding = _reusing(self.arguments)(feeding=self.feeding, chunks=np.int32(chunks), **held)
        self.left, self.reused = self.left - chunks, chunks * self.chunk

    def lets_pass(self, ids: Sequence[int]) -> bool:
        """Returns whether a later prompt may be fed before the rest of this one.

        It must be shorter than what is left. All that pass have no more chunks than this one, so none waits for ever.
        """
        return self._chunks(ids) < self.left and self._chunks(ids) <= self.grace

    def let_pass(self, ids: Sequence[int]) -> None:
        """Records that a later prompt is fed first."""
        self.grace -= self._chunks(ids)

    def _chunks(self, ids: Sequence[int]) -> int:
        return max(1, -(-(len(ids) - 1) // self.chunk))

    def finish(self) -> Feeding:
        """Returns the row, and holds it no longer."""
        feeding = self.feeding
        del self.feeding
        return feeding

    def feed(self, chunks: int) -> None:
        """Feeds up to this number of chunks, and waits for the device."""
        if self.scores is None:
            self.feeding = _feeding(self.arguments)(feeding=self.feeding, chunks=np.int32(chunks))
        else:
            feed = _scoring(self.arguments, self.scores)
            self.feeding, self.scores = feed(feeding=self.feeding, scores=self.scores, chunks=np.int32(chunks))
        self.left = int(jax.device_get(self.feeding.left))

    def keeps(self, generation: Generation) -> bool:
        """Returns whether other prompts can begin with the caches of a row that has ended with this result."""
        return self.continues and bool(generation.status[0] == Status.OK)

    def text(self, generation: Generation) -> list[int]:
        """Returns the tokens of the prompt and of its result."""
        return [*self.ids, *generation.tokens[0, : int(generation.length[0])].tolist()]

    def prefix(self, row: GenerationState, text: Sequence[int], slots: int) -> Prefix:
        """Returns what prompts that begin like this request's text can take from its row.

        Args:
          row: the row after its end.
          text: its tokens.
          slots: the largest number of rows that were decoded at a time.
        """
        count = _holding(self.arguments)
        held = int(jax.device_get(to_host(count(cache=row.cache, drafter_state=row.drafter_state)))[0])
        pass_tokens = slots * (self.arguments.drafter.lengths[-1] + 1)
        of_chunks = (len(self.ids) - 1) // self.chunk * self.chunk
        valid = held if _same_bits(self.arguments.target, max(self.chunk, pass_tokens)) else min(held, of_chunks)
        return Prefix(self._kind, np.asarray(text, np.int32), valid, row.cache, row.drafter_state)


def compile_feeding(arguments: Arguments) -> Feeding:
    """Compiles what feeds prompts; returns the shapes and types of a prompt that was fed."""
    feeding, feed = start_feeding.compile(arguments), _feeding(arguments)
    return feed.func.compile(*feed.args, feeding=feeding, chunks=np.int32(1))


def compile_scoring(arguments: Arguments, alternatives: int) -> Iterator[None]:
    """Compiles what feeds and scores prompts; yields after the program."""
    feeding: Feeding = start_feeding.compile(arguments)
    scores = jax.eval_shape(lambda: PromptScores.blank(feeding.width, alternatives))
    feed = _scoring(arguments, scores)
    feed.func.compile(*feed.args, feeding=feeding, scores=scores, chunks=np.int32(1))
    yield None


def compile_reuse(arguments: Arguments, feeding: Feeding, row: GenerationState) -> Iterator[None]:
    """Compiles what begins prompts with those of other rows; yields after each program.

    Args:
      arguments: the arguments of a call with one row.
      feeding: the shapes and types of its prompt.
      row: those of a row that has ended.
    """
    if _continues(arguments, feeding):
        held: dict[str, Any] = {"cache": row.cache, "drafter_state": row.drafter_state}
        count, begin = _holding(arguments), _reusing(arguments)
        count.func.compile(*count.args, **held)
        yield
        begin.func.compile(*begin.args, feeding=feeding, chunks=np.int32(1), **held)
        yield


def _continues(arguments: Arguments, feeding: Feeding) -> bool:
    """Returns whether prompts can begin with what a row of another text holds."""
    return arguments.target.traits.rewinds and (feeding.by_chunk or not arguments.drafter.capture)


def _feeding(arguments: Arguments) -> Any:
    return _program(feed_some, arguments, arguments.target, arguments.drafter)


def _scoring(arguments: Arguments, scores: PromptScores) -> Any:
    models = arguments.target, arguments.drafter
    shapes = arguments.rows.prompt.shape[1], arguments.room, scores.tokens.shape
    return jit_of(feed_scored, models, donate=("feeding", "scores"), shapes=shapes)


def _reusing(arguments: Arguments) -> Any:
    return _program(reuse, arguments, arguments.target)


def _holding(arguments: Arguments) -> Any:
    return _program(held_tokens, arguments, arguments.drafter)


def _program(function: Any, arguments: Arguments, *models: Any) -> Any:
    shapes = arguments.rows.prompt.shape[1], arguments.room
    return jit_of(function, models, donate=() if function is held_tokens else ("feeding",), shapes=shapes)


def _same_bits(target: Model, tokens: int) -> bool:
    """Returns whether passes of up to this number of tokens agree to the bit."""
    return target.traits.pass_tokens is not None or (target.traits.kernels == "native" and tokens <= _BY_TOKEN)
