"""Holds the prompt that an engine is feeding, some chunks at a time."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import jax
import numpy as np

from jaxspec.core.model import Model
from jaxspec.core.prefill import in_chunks
from jaxspec.core.state import GenerationState
from jaxspec.decoding.feeding import Feeding, feed_some, start_feeding
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.reuse import held_tokens, reuse
from jaxspec.decoding.rounds import jit_of
from jaxspec.serving.prefixes import Prefix, Prefixes, kind_of

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
      reused: the number of tokens that came from another text.
      done: whether the row has ended before its first token, without a budget.
      continues: whether it can begin with what a row of another text holds.
    """

    def __init__(self, job: _Job, arguments: Arguments, ids: Sequence[int]) -> None:
        """Begins the row of a request; nothing is fed."""
        self.job, self.arguments, self.ids, self.reused = job, arguments, ids, 0
        self.feeding = start_feeding(arguments)
        left, done = jax.device_get((self.feeding.left, self.feeding.row.done))
        self.left, self.done = int(left), bool(done[0])
        target, self._width = arguments.target, self.feeding.width
        self._chunk = in_chunks(target, self.feeding.row.tokens[:, : self._width])[1]
        row = self.feeding.row
        self._kind = kind_of(target.traits, row.cache, row.drafter_state)
        self._shapes = self._width, arguments.room
        reads = self.feeding.by_chunk or not arguments.drafter.capture
        self.continues = target.traits.rewinds and reads and not self.done

    def take_from(self, prefixes: Prefixes) -> None:
        """Takes the first chunks from a text that begins like the prompt, if there is one."""
        if not self.continues:
            return
        found = prefixes.find(self._kind, self.ids, self._chunk, self._width // self._chunk - 1)
        if found is None:
            return
        prefix, chunks = found
        begin = jit_of(reuse, (self.arguments.target,), donate=("feeding",), shapes=self._shapes)
        held = {"cache": prefix.cache, "drafter_state": prefix.drafter_state}
        self.feeding = begin(feeding=self.feeding, chunks=np.int32(chunks), **held)
        self.left, self.reused = self.left - chunks, chunks * self._chunk

    def finish(self) -> Feeding:
        """Returns the row, and holds it no longer."""
        feeding = self.feeding
        del self.feeding
        return feeding

    def feed(self, chunks: int) -> None:
        """Feeds up to this number of chunks, and waits for the device."""
        models = (self.arguments.target, self.arguments.drafter)
        feed = jit_of(feed_some, models, donate=("feeding",), shapes=self._shapes)
        self.feeding = feed(feeding=self.feeding, chunks=np.int32(chunks))
        self.left = int(jax.device_get(self.feeding.left))

    def prefix(self, row: GenerationState, text: Sequence[int], slots: int) -> Prefix:
        """Returns what prompts that begin like this request's text can take from its row.

        Args:
          row: the row after its end.
          text: its tokens.
          slots: the largest number of rows that were decoded at a time.
        """
        count = jit_of(held_tokens, (self.arguments.drafter,), shapes=self._shapes)
        held = int(jax.device_get(count(cache=row.cache, drafter_state=row.drafter_state))[0])
        pass_tokens = slots * (self.arguments.drafter.lengths[-1] + 1)
        of_chunks = (len(self.ids) - 1) // self._chunk * self._chunk
        valid = held if _same_bits(self.arguments.target, max(self._chunk, pass_tokens)) else min(held, of_chunks)
        return Prefix(self._kind, np.asarray(text, np.int32), valid, row.cache, row.drafter_state)


def _same_bits(target: Model, tokens: int) -> bool:
    """Returns whether passes of up to this number of tokens agree to the bit."""
    return target.traits.pass_tokens is not None or (target.traits.kernels == "native" and tokens <= _BY_TOKEN)
