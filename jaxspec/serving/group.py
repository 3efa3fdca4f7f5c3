"""Holds the slots of requests that share a program, and moves their rows to another width when the load changes.

width 2    a b              both slots are taken, and c arrives
width 4    a b c .          the rows move to twice the width
           . b . .          a and c end
width 1    b                after some turns the row that is left moves back
"""

import dataclasses
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxspec.core.model import Model
from jaxspec.core.rows import RowAxes
from jaxspec.core.state import GenerationState
from jaxspec.decoding.answers import state_axes
from jaxspec.decoding.feeding import Feeding, ready
from jaxspec.decoding.generate import initial_state, round_of
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.round import Round
from jaxspec.decoding.rounds import jit_of
from jaxspec.decoding.slots import Advance, Slots, insert, release, run_rounds, take
from jaxspec.drafters.adapt import for_rows
from jaxspec.drafters.base import Drafter

_Job = TypeVar("_Job")

# Turns with at most half of the slots taken after which rows move to half the width.
_PATIENCE = 16


def signature(arguments: Arguments) -> Hashable:
    """Returns what requests must share to be rows of one group: structure, shapes, and arrays that rows share."""
    bare = dataclasses.replace(arguments, target=None, drafter=None)  # of one engine
    leaves, tree = jax.tree.flatten(bare)
    shared = tuple(map(id, jax.tree.leaves((arguments.policy, arguments.processors))))
    kinds = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)  # a rule has floats
    return tree, kinds, shared


class Group(Generic[_Job]):
    """Decodes rows of one signature. One thread at a time may call it.

    Attributes:
      live: the job of each taken slot.
      width: the number of slots; 0 before the first row.
    """

    def __init__(self, arguments: Arguments, most: int, rounds: int) -> None:
        """Takes the arguments of its first row.

        Args:
          arguments: the arguments of a call with one row.
          most: the largest number of slots.
          rounds: the largest number of rounds of one turn.
        """
        self.live: dict[int, _Job] = {}
        self.width = 0
        self._arguments, self._most, self._rounds = arguments, most, rounds
        self._round = round_of(arguments)
        self._by_width: dict[int, Round] = {}
        self._axes: RowAxes | None = None
        self._slots: Slots | None = None
        self._calm = 0

    def add(self, job: _Job, feeding: Feeding) -> int:
        """Puts the row of a prompt that was fed into a free slot, and returns the slot."""
        if len(self.live) == self.width:
            self._resize(max(1, min(2 * self.width, self._most)), feeding.row)
        slot = next(slot for slot in range(self.width) if slot not in self.live)
        put = self._jit(_put, "slots", models=(self._round.target, self._round.drafter))
        self._slots = put(slots=self._slots, feeding=feeding, slot=np.int32(slot))
        self.live[slot] = job
        return slot

    def advance(self, most: int, until_end: bool) -> Advance:
        """Runs up to `most` rounds over the taken slots, and returns what they emitted, on the host."""
        assert self._slots is not None
        advance = self._jit(_advance, "slots", models=(self._round_of_width(),), static=("rounds",))
        self._slots, found = advance(
            slots=self._slots,
            free=self._free(),
            rounds=self._rounds,
            most=np.int32(most),
            until_end=np.bool_(until_end),
        )
        return jax.device_get(found)

    def take(self, slot: int) -> GenerationState:
        """Returns the row of a slot."""
        return self._jit(take)(slots=self._slots, slot=np.int32(slot))

    def release(self, slot: int) -> None:
        """Frees a slot; the next `advance` drops its row."""
        del self.live[slot]

    def settle(self) -> None:
        """Moves the rows to half the width if at most half of the slots were taken for some turns."""
        if not self.live or 2 * len(self.live) > self.width or self.width == 1:
            self._calm = 0
            return
        self._calm += 1
        if self._calm >= _PATIENCE:
            self._resize((self.width + 1) // 2, None)

    def _resize(self, width: int, row: GenerationState | None) -> None:
        """Moves the rows to the first slots of another width; `row` is any row, needed for the first width."""
        self._calm = 0
        if self._slots is None:
            assert row is not None
            self._axes = state_axes(initial_state, self._arguments)
            self._slots = self._jit(_repeated, static=("axes", "count"))(row=row, axes=self._axes, count=width)
        else:
            rows = list(self.live)
            places = np.array([*rows, *[0] * (width - len(rows))], np.int32)
            self._slots = self._jit(_gathered)(slots=self._slots, places=places)
            self.live = dict(enumerate(self.live.values()))
        self.width = width

    def _round_of_width(self) -> Round:
        """Returns a round whose drafter drafts as many tokens as pay for this many rows."""
        if self.width not in self._by_width:
            drafter = for_rows(self._arguments.drafter, self._arguments.target, self.width)
            self._by_width[self.width] = round_of(dataclasses.replace(self._arguments, drafter=drafter))
        return self._by_width[self.width]

    def _free(self) -> Bool[np.ndarray, "b"]:
        return ~np.isin(np.arange(self.width), list(self.live))

    def _jit(self, function: Any, *donate: str, models: tuple[Any, ...] = (), static: tuple[str, ...] = ()) -> Any:
        return jit_of(function, models, donate=donate, static=static, shapes=(self.width, self._arguments.room))


def _advance(
    one: Round,
    slots: Slots,
    free: Bool[jax.Array, "b"],
    rounds: int,
    most: Int[jax.Array, ""],
    until_end: Bool[jax.Array, ""],
) -> tuple[Slots, Advance]:
    return run_rounds(one, release(slots, free), rounds, most, until_end)


def _put(target: Model, drafter: Drafter, slots: Slots, feeding: Feeding, slot: Int[jax.Array, ""]) -> Slots:
    return insert(slots, ready(target, drafter, feeding), slot)


def _repeated(row: GenerationState, axes: RowAxes, count: int) -> Slots:
    return Slots(axes.repeat(row, count), axes)


def _gathered(slots: Slots, places: Int[jax.Array, "n"]) -> Slots:
    return dataclasses.replace(slots, state=slots.axes.gather(slots.state, jnp.asarray(places)))
