"""Holds the prompt that an engine is feeding, some chunks at a time."""

from typing import Generic, TypeVar

import jax
import numpy as np

from jaxspec.decoding.feeding import feed_some, start_feeding
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.rounds import jit_of

_Job = TypeVar("_Job")


class Prompt(Generic[_Job]):
    """Feeds the prompt of one request.

    Attributes:
      job: the request.
      arguments: its arguments.
      feeding: the row so far.
      left: the number of chunks that are missing.
      done: whether the row has ended before its first token, without a budget.
    """

    def __init__(self, job: _Job, arguments: Arguments) -> None:
        """Begins the row of a request; nothing is fed."""
        self.job, self.arguments = job, arguments
        self.feeding = start_feeding(arguments)
        left, done = jax.device_get((self.feeding.left, self.feeding.row.done))
        self.left, self.done = int(left), bool(done[0])

    def feed(self, chunks: int) -> None:
        """Feeds up to this number of chunks, and waits for the device."""
        models = (self.arguments.target, self.arguments.drafter)
        shapes = (self.feeding.width, self.arguments.room)
        feed = jit_of(feed_some, models, donate=("feeding",), shapes=shapes)
        self.feeding = feed(feeding=self.feeding, chunks=np.int32(chunks))
        self.left = int(jax.device_get(self.feeding.left))
