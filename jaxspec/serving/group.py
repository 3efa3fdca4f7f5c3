"""Holds the slots of requests that share a program, and moves their rows to another width when the load changes.

width 2    a b              both slots are taken, and c arrives
width 4    a b c .          the rows move to twice the width
           . b . .          a and c end
width 2    b .              after some turns the row that is left moves back
"""

import dataclasses
import functools
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.results import Generation
from jaxspec.core.rows import RowAxes
from jaxspec.core.state import GenerationState
from jaxspec.decoding.answers import state_axes
from jaxspec.decoding.feeding import Feeding, ready
from jaxspec.decoding.generate import collect, cut, initial_state, round_of
from jaxspec.decoding.options import Arguments
from jaxspec.decoding.round import Round
from jaxspec.decoding.rounds import jit_of
from jaxspec.decoding.slots import Advance, Slots, insert, release, run_rounds, take
from jaxspec.drafters.adapt import for_rows
from jaxspec.drafters.base import Drafter
from jaxspec.sharding.placement import to_host

_Job = TypeVar("_Job")

# Turns with at most half of the slots taken after which rows move to half the width.
_PATIENCE = 16


def kind_of(arguments: Arguments) -> Hashable:
    """Returns what the programs of requests depend on, for the models of one engine: structure, shapes and types."""
    bare = dataclasses.replace(arguments, target=None, drafter=None)
    leaves, tree = jax.tree.flatten(bare)
    # The leaves of a rule may be floats.
    return tree, tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)


def shared_arrays(arguments: Arguments) -> Hashable:
    """Returns what requests of one kind must also share to be rows of one group: the arrays that rows share."""
    return tuple(map(id, jax.tree.leaves((arguments.policy, arguments.processors))))


def widths(most: int) -> list[int]:
    """Returns the numbers of slots that a group may have: 1, 2, 4, ... and the largest.

    Example:
        >>> from jaxspec.serving.group import widths
        >>> widths(6)
        [1, 2, 4, 6]
    """
    return [*(1 << power for power in range((most - 1).bit_length())), most]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Fixed:
    """Holds what is static in a program. It is passed as a model: then the program's key has it, on disk too."""

    values: tuple[Any, ...] = dataclasses.field(metadata={"static": True})


class Group(Generic[_Job]):
    """Decodes rows of one signature. One thread at a time may call it.

    Attributes:
      ahead: whether nothing runs.
      arguments: those of its first row.
      live: the job of each taken slot.
      width: the number of slots; 0 before the first row.
    """

    def __init__(self, arguments: Arguments, most: int, rounds: int, *, ahead: bool = False) -> None:
        """Takes the arguments of its first row.

        Args:
          arguments: the arguments of a call with one row.
          most: the largest number of slots.
          rounds: the largest number of rounds of one turn.
          ahead: whether nothing runs: `compile` compiles what would.
        """
        self.ahead = ahead
        self.live: dict[int, _Job] = {}
        self.width = 0
        self.arguments, self._most, self._rounds = arguments, most, rounds
        self._round = round_of(arguments)
        self._by_width: dict[int, Round] = {}
        self._axes: RowAxes | None = None
        self._slots: Any = None  # `Slots`, or its shapes and types
        self._calm = 0

    def add(self, job: _Job, feeding: Feeding) -> int:
        """Puts the row of a prompt that was fed into a free slot, and returns the slot."""
        slot = next(slot for slot in range(self.width) if slot not in self.live)
        self._put(feeding, slot)
        self.live[slot] = job
        return slot

    def advance(self, most: int, until_end: bool) -> Advance:
        """Runs up to `most` rounds over the taken slots, and returns what they emitted, on the host."""
        fixed = _Fixed((self._rounds,))
        self._slots, found = self._jit(_advance, "slots", models=(self._round_of_width(), fixed))(
            slots=self._slots,
            free=self._free(),
            most=np.int32(most),
            until_end=np.bool_(until_end),
        )
        return jax.device_get(found)

    def take(self, slot: int) -> tuple[GenerationState, Generation]:
        """Returns the row of a slot, and its result on the host."""
        fixed = _Fixed((self.arguments.room.tokens, self.arguments.verifier.lossless))
        row, result, most = self._jit(_take, models=(fixed,))(slots=self._slots, slot=np.int32(slot))
        if self.ahead:
            return row, result
        result, most = jax.device_get(to_host((result, most)))
        return row, cut(result, int(most[0]))

    def release(self, slot: int) -> None:
        """Frees a slot; the next `advance` drops its row."""
        del self.live[slot]

    def shrinks_to(self) -> int | None:
        """Counts a turn; returns a smaller width if at most half of the slots were taken for some turns."""
        if not self.live or 2 * len(self.live) > self.width or self.width == 1:
            self._calm = 0
            return None
        self._calm += 1
        half = (self.width + 1) // 2
        return next(width for width in widths(self._most) if width >= half) if self._calm >= _PATIENCE else None

    def resize(self, width: int, row: GenerationState | None = None) -> None:
        """Moves the rows to the first slots of another width; `row` is any row, needed for the first width."""
        self._calm = 0
        if self._slots is None:
            assert row is not None
            fixed = _Fixed((self._axes_of_rows(), width))
            self._slots = self._jit(_repeated, models=(fixed,))(row=row)
        else:
            rows = list(self.live)
            places = np.array([*rows, *[0] * (width - len(rows))], np.int32)
            self._slots = self._jit(_gathered)(slots=self._slots, places=places)
            self.live = dict(enumerate(self.live.values()))
        self.width = width

    def compile(self, feeding: Feeding, before: int, after: int) -> Iterator[Any]:
        """Compiles what rows need that move from one width to another, which may be the first; needs `ahead`.

        Args:
          feeding: the shapes and types of a prompt that was fed.
          before: the width before; 0 for none.
          after: the width after.

        Yields:
          After each program; the last time the shapes and types of a row that has ended.
        """
        if before:
            fixed = _Fixed((self._axes_of_rows(), before))
            self._slots = jax.eval_shape(functools.partial(_repeated, fixed), feeding.row)
            self.width = before
        self.resize(after, feeding.row)
        yield None
        self._put(feeding, 0)
        yield None
        self.advance(self._rounds, False)
        yield self.take(0)[0]

    def _put(self, feeding: Feeding, slot: int) -> None:
        put = self._jit(_put, "slots", models=(self._round.target, self._round.drafter))
        self._slots = put(slots=self._slots, feeding=feeding, slot=np.int32(slot))

    def _axes_of_rows(self) -> RowAxes:
        if self._axes is None:
            self._axes = state_axes(initial_state, self.arguments)
        return self._axes

    def _round_of_width(self) -> Round:
        """Returns a round whose drafter drafts as many tokens as pay for this many rows."""
        if self.width not in self._by_width:
            drafter = for_rows(self.arguments.drafter, self.arguments.target, self.width, rests=True)
            self._by_width[self.width] = round_of(dataclasses.replace(self.arguments, drafter=drafter))
        return self._by_width[self.width]

    def _free(self) -> Bool[np.ndarray, "b"]:
        return ~np.isin(np.arange(self.width), list(self.live))

    def _jit(self, function: Any, *donate: str, models: tuple[Any, ...] = ()) -> Any:
        program = jit_of(function, models, donate=donate, shapes=(self.width, self.arguments.room))
        return functools.partial(program.func.compile, *program.args) if self.ahead else program


def _advance(
    one: Round,
    fixed: _Fixed,
    slots: Slots,
    free: Bool[jax.Array, "b"],
    most: Int[jax.Array, ""],
    until_end: Bool[jax.Array, ""],
) -> tuple[Slots, Advance]:
    (rounds,) = fixed.values
    return run_rounds(one, release(slots, free), rounds, most, until_end)


def _put(target: Model, drafter: Drafter, slots: Slots, feeding: Feeding, slot: Int[jax.Array, ""]) -> Slots:
    return insert(slots, ready(target, drafter, feeding), slot)


def _take(
    fixed: _Fixed, slots: Slots, slot: Int[jax.Array, ""]
) -> tuple[GenerationState, Generation, Int[jax.Array, "1"]]:
    width, lossless = fixed.values
    row = take(slots, slot)
    return row, collect(row, width, lossless), row.limit - row.prompt_length


def _repeated(fixed: _Fixed, row: GenerationState) -> Slots:
    axes, count = fixed.values
    return Slots(axes.repeat(row, count), axes)


def _gathered(slots: Slots, places: Int[jax.Array, "n"]) -> Slots:
    return dataclasses.replace(slots, state=slots.axes.gather(slots.state, jnp.asarray(places)))
