"""Decodes rows that come and go: a state of a fixed number of slots, each free or holding a row.

slot       0     1     2     3
           a b   .     c d   .        rows in slots 0 and 2; 1 and 3 are free
insert     a b   e f   c d   .        a row whose prompt was fed apart
advance    a b x e f y c d z .        rounds; a free or ended slot emits nothing
take       e f y                      that of slot 1, as a state of one row
release    a b x .     c d z .        slot 1 is free again

A row's tokens are those of a separate call with the same capacity and verifier, regardless of the other slots. The
exception is a drafter whose rows agree on a number of drafts (`Adaptive`).
"""

import dataclasses
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.results import StopReason
from jaxspec.core.rows import RowAxes
from jaxspec.core.state import GenerationState, RoundInfo
from jaxspec.core.typed import typed
from jaxspec.core.validate import is_concrete, to_int32
from jaxspec.decoding.answers import state_axes
from jaxspec.decoding.generate import initial_state, round_of_state, start
from jaxspec.decoding.options import Arguments, Options, RowKeywords, TokenIds, as_array
from jaxspec.decoding.room import bucket
from jaxspec.decoding.round import Round
from jaxspec.drafters.base import Drafter
from jaxspec.verifiers.base import Verifier

# The most rounds of a turn of a server. It sizes a buffer, which is written once a round.
MOST_ROUNDS = 16
# The options of a row that its slot does not fix.
_OF_ROWS = ("prompt_length", "max_new_tokens", "key", "answers")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """Holds rows that come and go, with the batch axis of each array.

    Attributes:
      state: the state of all slots. A free slot is done, and has one token and no budget.
      axes: the batch axis of each array.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> slots = jaxspec.serving.slots(target, drafter, 4, capacity=32)
        >>> slots.state.done.tolist()
        [True, True, True, True]
    """

    state: GenerationState
    axes: RowAxes = dataclasses.field(metadata={"static": True})


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Advance:
    """Reports what the rounds of one `advance` emitted.

    Attributes:
      rounds: holds each round's emitted tokens and counts, with a leading axis `r` for the round.
      count: the number of rounds that ran; the entries of `rounds` after them are empty.
      done: whether each slot has no row, or one that has ended.
      length: the number of tokens of each row, prompt included.
      stop_reason: the `StopReason` of each row.
      status: the `Status` of each row.

    Example:
        >>> slots = jaxspec.serving.slots(target, None, 2, capacity=32)
        >>> slots, found = jaxspec.serving.advance(target, None, None, slots, rounds=3)
        >>> int(found.count), found.rounds.tokens.shape
        (0, (3, 2, 1))
    """

    rounds: RoundInfo
    count: Int[Array, ""]
    done: Bool[Array, "b"]
    length: Int[Array, "b"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]


@typed("target")
def slots(target: Model, drafter: Drafter | None, count: int, **options: Unpack[RowKeywords]) -> Slots:
    """Creates free slots for rows of one kind.

    Rows fit if their options have the same kinds and sizes: greedy or sampled, the warpers that are given, the
    processors, the width of `stop_tokens`, whether there are `max_drafts` and a `prediction`, and the report. Their
    values may differ.

    Args:
      target: the model.
      drafter: the drafter; `None` means plain decoding.
      count: the number of slots.
      **options: those of `init`, which fix the kinds and sizes of the rows' own. `capacity` is needed: the number of
        tokens that a row has room for, prompt included, rounded up to 16, 24, 32, 48, 64, ...

    Raises:
      TypeError, ValueError: as in `generate`; or a processor has arrays that all rows share.

    Example:
        >>> slots = jaxspec.serving.slots(target, None, 2, capacity=32)
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> slots = jaxspec.serving.insert(slots, row, 1)
        >>> slots, found = jaxspec.serving.advance(target, None, None, slots, rounds=8)
        >>> found.done.tolist(), int(found.rounds.count.sum())
        ([True, True], 3)
        >>> jaxspec.finish(jaxspec.serving.take(slots, 1)).length.tolist()
        [3]
    """
    validate.counts("slots", count=count)
    for name in options.keys() & set(_OF_ROWS):
        raise TypeError(f"slots got {name}, which each row has for itself; pass it to feed")
    # A free slot is a row without a budget.
    free: RowKeywords = {**options, "max_new_tokens": 0, "key": jax.random.key(0)}
    arguments = row_arguments(target, drafter, [[0]], free)
    axes = state_axes(initial_state, arguments)
    return Slots(axes.repeat(start(arguments), int(count)), axes)


@typed("target")
def feed(target: Model, drafter: Drafter | None, prompt: TokenIds, **options: Unpack[RowKeywords]) -> GenerationState:
    """Feeds one prompt, and returns the row to insert into a slot.

    Prompts of all lengths share a program.

    Args:
      target: the model that the slots were created with.
      drafter: the drafter that they were created with.
      prompt: `[1, t]` token ids.
      **options: those of `init`, with the capacity, kinds and sizes of the slots'.

    Raises:
      TypeError, ValueError: as in `generate`; or there are several prompts.

    Example:
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> row.length.tolist(), row.tokens.shape
        ([5], (1, 33))
    """
    if options.get("answers", 1) != 1:
        raise ValueError(
            "a row is one answer; feed the prompt once, and insert the row with other keys for each answer"
        )
    return start(row_arguments(target, drafter, prompt, options))


@typed()
def insert(slots: Slots, row: GenerationState, slot: Int[Array, ""] | int) -> Slots:
    """Replaces what a slot holds with a row. Pure; jit it with the slots donated.

    Args:
      slots: the slots.
      row: the result of `feed` or `take`, from slots of the same kind.
      slot: the index of the slot, traced or not.

    Raises:
      ValueError: the row does not fit the slots, or there is no such slot.

    Example:
        >>> slots = jaxspec.serving.slots(target, None, 2, capacity=32)
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> jaxspec.serving.insert(slots, row, 0).state.length.tolist()
        [5, 1]
    """
    _check_slot(slots, slot)
    try:
        return dataclasses.replace(slots, state=slots.axes.insert(slots.state, row, slot))
    except ValueError as error:
        raise ValueError(
            "the row does not fit the slots; feed it with the drafter, the capacity and the kinds of options that they "
            f"were created with: {error}"
        ) from error


@typed()
def take(slots: Slots, slot: Int[Array, ""] | int) -> GenerationState:
    """Returns the row of a slot, which keeps it.

    Raises:
      ValueError: there is no such slot.

    Example:
        >>> jaxspec.serving.take(jaxspec.serving.slots(target, None, 2, capacity=32), 1).length.tolist()
        [1]
    """
    _check_slot(slots, slot)
    return slots.axes.take(slots.state, slot)


@typed()
def release(slots: Slots, which: Bool[Array, "b"]) -> Slots:
    """Frees slots, whose rows are dropped.

    Args:
      slots: the slots.
      which: whether to free each slot.

    Raises:
      TypeError, ValueError: an argument has the wrong type, or `which` another number of slots.

    Example:
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=3)
        >>> slots = jaxspec.serving.insert(jaxspec.serving.slots(target, None, 2, capacity=32), row, 0)
        >>> jaxspec.serving.release(slots, jnp.asarray([True, False])).state.length.tolist()
        [1, 1]
    """
    _check_rows(slots, "which", which)
    state, context = slots.state, slots.state.context
    length = jnp.where(which, 1, context.length)  # an empty text has no last token to feed
    context = dataclasses.replace(
        context,
        length=length,
        done=context.done | which,
        cache=context.cache.truncate(jnp.minimum(context.cache.length, length - 1)),
    )
    at_end = lambda values, free: jnp.where(which, jnp.asarray(free, values.dtype), values)  # noqa: E731
    return dataclasses.replace(
        slots,
        state=dataclasses.replace(
            state,
            context=context,
            limit=at_end(state.limit, 1),
            prompt_length=at_end(state.prompt_length, 1),
            stop_reason=at_end(state.stop_reason, StopReason.MAX_NEW_TOKENS),
            status=at_end(state.status, 0),
        ),
    )


@typed("slots", "most", "until_end", "cancel")
def advance(
    target: Model,
    drafter: Drafter | None,
    verifier: Verifier | None,
    slots: Slots,
    *,
    rounds: int,
    most: Int[Array, ""] | int | None = None,
    until_end: Bool[Array, ""] | bool = False,
    cancel: Bool[Array, "b"] | None = None,
    lossy: bool = False,
) -> tuple[Slots, Advance]:
    """Runs rounds over all slots, until all have ended. Pure; jit it with the slots donated.

    Args:
      target: the model that the slots were created with.
      drafter: the drafter that they were created with.
      verifier: decides which drafts are accepted; `None` means the drafter's default.
      slots: the slots.
      rounds: the number of rounds that the result has room for. Static.
      most: the number of rounds to run, at most `rounds`; `None` means all of them.
      until_end: whether to return after a round in which a row ended.
      cancel: rows to end before the first round.
      lossy: must be True for a verifier that does not preserve the target's distribution.

    Returns:
      The slots, and what the rounds emitted.

    Raises:
      TypeError, ValueError: as in `step`.

    Example:
        >>> row = jaxspec.serving.feed(target, None, prompt[:1], capacity=32, max_new_tokens=6)
        >>> slots = jaxspec.serving.insert(jaxspec.serving.slots(target, None, 2, capacity=32), row, 0)
        >>> slots, found = jaxspec.serving.advance(target, None, None, slots, rounds=4)
        >>> found.rounds.count[:, 0].tolist(), found.done.tolist()
        ([1, 1, 1, 1], [False, True])
    """
    validate.counts("advance", rounds=rounds)
    _check_rows(slots, "cancel", cancel)
    one = round_of_state(target, drafter, verifier, slots.state, lossy)
    state = slots.state if cancel is None else slots.state.with_done(slots.state.done | cancel)
    bound = jnp.int32(rounds) if most is None else jnp.minimum(to_int32(most), rounds)
    return run_rounds(one, dataclasses.replace(slots, state=state), rounds, bound, jnp.asarray(until_end))


def run_rounds(
    one: Round, slots: Slots, rounds: int, most: Int[Array, ""], until_end: Bool[Array, ""]
) -> tuple[Slots, Advance]:
    """Repeats a round, as `advance` describes."""
    state, replicate = slots.state, one.target.traits.placement.replicate
    blank = RoundInfo.empty(state.length, one.drafter.max_drafts)
    room = jax.tree.map(lambda x: jnp.zeros((rounds, *x.shape), x.dtype), blank)
    before = state.done

    def goes_on(carry):
        count, state, _ = carry
        return (count < most) & ~jnp.all(state.done) & ~(until_end & jnp.any(state.done & ~before))

    def run(carry):
        count, state, found = carry
        state, info = one.run(state)
        return count + 1, state, jax.tree.map(lambda buffer, x: buffer.at[count].set(x), found, info)

    with jax.named_scope("rounds"):
        count, state, found = jax.lax.while_loop(goes_on, run, (jnp.int32(0), state, room))
    emitted = replicate(Advance(found, count, state.done, state.length, state.stop_reason, state.status))
    return dataclasses.replace(slots, state=state.with_done(emitted.done)), emitted


def row_arguments(target: Model, drafter: Drafter | None, prompt: TokenIds, options: RowKeywords) -> Arguments:
    """Checks the arguments of one row; its prompt is padded to the capacity, so that all lengths share a program."""
    capacity = validate.capacity(options.get("capacity"))
    if capacity is None:
        raise TypeError("slots need a capacity, the number of tokens that a row has room for; pass capacity=1024, say")
    room, context, ids = bucket(capacity), target.context_length, as_array(prompt)
    room = room if context is None else min(room, context)
    lengths = options.get("prompt_length")
    validate.prompt(ids, lengths, target.vocab_size)
    rows, width = ids.shape
    if rows != 1:
        raise ValueError(f"a row has one prompt, got {rows}; feed them one after the other")
    if width > room:
        raise ValueError(f"the prompt has {width} tokens, but the slots have a capacity of {room}")
    padding = ((0, 0), (0, room - width))
    padded = np.pad(np.asarray(ids), padding) if is_concrete(ids) else jnp.pad(to_int32(ids), padding)
    given = {**options, "capacity": room, "prompt_length": width if lengths is None else lengths}
    arguments, _ = Arguments.check(target, drafter, padded, Options.of(given))
    _check_processors(arguments)
    return arguments


def _check_processors(arguments: Arguments) -> None:
    for one in (*arguments.processors, arguments.policy):
        if jax.tree.leaves(one):
            raise ValueError(
                f"{type(one).__name__} has values that all rows share, but each slot has its own; give it one value "
                "for each row, or leave it out"
            )


def _check_rows(slots: Slots, name: str, rows: Bool[Array, "b"] | None) -> None:
    count = slots.state.length.shape[0]
    if rows is not None and rows.shape != (count,):
        raise ValueError(f"{name} must be a flag for each of {count} slots, got shape {rows.shape}")


def _check_slot(slots: Slots, slot: Int[Array, ""] | int) -> None:
    if is_concrete(slot):
        count = slots.state.length.shape[0]
        validate.integers("slots", slot=(slot if isinstance(slot, int) else int(slot), 0, count - 1))
