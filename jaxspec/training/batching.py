"""Batches sequences: what one step of training reads, and their order over all epochs."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Shaped

from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Holds conversations, padded on the right; an empty row has length 0.

    Attributes:
      tokens: the text.
      length: how many tokens of each row count.
      answer: which tokens are the assistant's, its stop token included: those that a drafter
        learns to guess.
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    answer: Bool[Array, "b t"]


def at_places(x: Shaped[Array, "b t *d"], places: Int[Array, "b a"]) -> Shaped[Array, "b a *d"]:
    """Takes what each row has at its places, all of which must exist.

    Unchecked, because a check takes one more pass over the result, such as distributions over the vocabulary.

    Args:
      x: values by row and place.
      places: the places to take.
    """
    index = places.reshape(*places.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")


@runtime_checkable
class Schedule(Protocol):
    """Yields an endless sequence of batches."""

    def batch(self, step: int) -> Batch:
        """Returns the batch at a place; the same one whenever it is asked for."""
        ...


@runtime_checkable
class Data(Protocol):
    """Specifies data to train on, such as a `jaxspec.training.dataset.Dataset`."""

    def token_counts(self) -> np.ndarray:
        """Returns `int64[v]`, how often each token stands in the answers."""
        ...

    def batches(self, *, batch_tokens: int, seed: int, devices: int) -> Schedule:
        """Returns batches of about so many tokens, padding included, whose rows are a multiple of `devices`."""
        ...


WIDTHS = (128, 256, 512, 1024)
_SHUFFLE, _ORDER = 0, 1


def widths_for(longest: int) -> tuple[int, ...]:
    """Returns `WIDTHS`, and as many doubled ones after them as a sequence of that length needs."""
    widths: list[int] = list(WIDTHS)
    while widths[-1] < longest:
        widths.append(2 * widths[-1])
    return tuple(widths)


class BatchSchedule:
    """Yields the batches of all epochs; every sequence stands in one batch of each epoch.

    Attributes:
      steps_per_epoch: batches an epoch.
      padding: the share of an epoch's tokens that is padding.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        read: Callable[[int], tuple[np.ndarray, np.ndarray]],
        *,
        batch_tokens: int,
        seed: int,
        devices: int = 1,
        widths: Sequence[int] = WIDTHS,
    ):
        """Lays out the batches.

        Args:
          lengths: `[n]`, tokens of each sequence.
          read: gives the tokens of sequence `i`, and which of them are a part of an answer.
          batch_tokens: tokens a batch, padding included; a width has `batch_tokens // width` rows.
          seed: of the shuffles, at least 0.
          devices: rows are a multiple of it, and at least that many.
          widths: ascending. A sequence is padded to the least width that holds it.

        Raises:
          ValueError: there is no sequence, one is longer than the last width, or a number is out of range.
        """
        self._read, self._seed, self._widths = read, seed, tuple(widths)
        _check(lengths, batch_tokens, seed, devices, self._widths)
        self._rows = tuple(max(batch_tokens // width // devices, 1) * devices for width in self._widths)
        bucket = np.searchsorted(self._widths, lengths)
        self._members = tuple(np.flatnonzero(bucket == place) for place in range(len(self._widths)))
        # Each batch as its width's place, and its number within that width.
        self._slots = [
            (place, number)
            for place, (members, rows) in enumerate(zip(self._members, self._rows, strict=True))
            for number in range(-(-len(members) // rows))
        ]
        self.steps_per_epoch = len(self._slots)
        room = sum(self._rows[place] * self._widths[place] for place, _ in self._slots)
        self.padding = 1 - float(np.sum(lengths)) / room
        self._epoch = functools.lru_cache(maxsize=2)(self._lay_out)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and width of the batches that there are: what a training step is compiled for."""
        return [(self._rows[place], self._widths[place]) for place in sorted({place for place, _ in self._slots})]

    def indices(self, step: int) -> list[int]:
        """Returns the sequences of a batch, in the order of its rows; empty rows are none of them.

        Raises:
          ValueError: the step is negative.
        """
        place, number = self._slot(step)
        shuffled, _ = self._epoch(step // self.steps_per_epoch)
        return shuffled[place][number * self._rows[place] : (number + 1) * self._rows[place]].tolist()

    def batch(self, step: int) -> Batch:
        """Returns the batch of a step, counted from 0 through all epochs.

        Raises:
          ValueError: the step is negative.
        """
        place, _ = self._slot(step)
        rows, width = self._rows[place], self._widths[place]
        tokens, answer = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.bool_)
        length = np.zeros(rows, np.int32)
        for row, index in enumerate(self.indices(step)):
            text, learn = self._read(index)
            length[row] = len(text)
            tokens[row, : len(text)], answer[row, : len(text)] = text, learn
        return Batch(jnp.asarray(tokens), jnp.asarray(length), jnp.asarray(answer))

    def _slot(self, step: int) -> tuple[int, int]:
        """Returns the place of a batch's width, and its number within that width."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        epoch, within = divmod(step, self.steps_per_epoch)
        return self._slots[self._epoch(epoch)[1][within]]

    def _lay_out(self, epoch: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Shuffles the members of each width, and the order of the batches."""
        rng = np.random.default_rng([self._seed, epoch, _SHUFFLE])
        shuffled = [rng.permutation(members) for members in self._members]
        return shuffled, np.random.default_rng([self._seed, epoch, _ORDER]).permutation(len(self._slots))


def _check(lengths: np.ndarray, batch_tokens: int, seed: int, devices: int, widths: tuple[int, ...]) -> None:
    """Raises `ValueError` unless the arguments of a `BatchSchedule` fit."""
    if not widths or min(widths) < 1 or list(widths) != sorted(set(widths)):
        raise ValueError(f"widths must be ascending and at least 1, got {widths}")
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if len(lengths) == 0:
        raise ValueError("there is no sequence to make batches of")
    if (longest := int(np.max(lengths))) > widths[-1]:
        raise ValueError(f"a sequence has {longest} tokens, more than the last of widths {widths}; add a larger width")
