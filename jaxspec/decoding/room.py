"""Computes the room that a call needs: budgets, the slots of its buffers, and whether they fit."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from jaxspec.core import memory, validate
from jaxspec.core.model import Model
from jaxspec.core.validate import LARGEST, is_concrete
from jaxspec.drafters.base import Drafter

PerRow: TypeAlias = Array | np.ndarray | np.integer | int | Sequence[int] | Sequence[Array | np.integer | int]

_SMALLEST_BUCKET = 16
# Texts share the program for this number of tokens, or a power of two times it: if a model's pass over a whole chunk of
# a prompt takes little longer than one over a few tokens, and the caches take at most this number of bytes.
_SHARED_ROOM, _SHARED_CHUNK, _SHARED_BYTES = 1024, 32, 2**29
# Rows times slots, and bytes of a round's logits, below which memory is not checked: any machine has that much.
_FEW_SLOTS, _FEW_BYTES = 4096, 2**27
# Bytes of a slot besides the cache: a token, two log-probabilities, and whether it was drafted.
_SLOT = 13


def bucket(size: int) -> int:
    """Returns the smallest of 16, 24, 32, 48, 64, 96, ... that is at least `size`."""
    power = _SMALLEST_BUCKET
    while power < size:
        if power + power // 2 >= size:
            return power + power // 2
        power *= 2
    return power


@dataclasses.dataclass(frozen=True)
class Room:
    """Holds the static sizes of a call: another one compiles another program.

    Attributes:
      tokens: the number of tokens that a row has room for, prompt included.
      new: the largest number of new tokens of a row.
    """

    tokens: int
    new: int


def shared_room(target: Model, rows: int, tokens: int | None) -> int | None:
    """Returns a capacity that calls with texts of most lengths share; `None` if it would cost them time or memory.

    Args:
      target: the model. Its caches must be read only where they hold tokens.
      rows: the number of texts.
      tokens: the number of tokens that the longest text needs room for; `None` is the model's context.
    """
    traits, context = target.traits, target.context_length
    slow = traits.prompt_chunk > _SHARED_CHUNK and jax.default_backend() == "cpu"
    tokens = context if tokens is None else tokens
    if traits.cache_type is None or slow or tokens is None:
        return None
    power = _SHARED_ROOM << max(0, (tokens - 1) // _SHARED_ROOM).bit_length()
    size = power if context is None else min(power, context)
    return size if _cache_bytes(target, rows, size) <= _SHARED_BYTES else None


def make_room(
    target: Model,
    drafter: Drafter,
    shape: tuple[int, int],
    prompt_length: PerRow | None,
    max_new_tokens: PerRow | None,
    capacity: int | None,
) -> tuple[PerRow, Room]:
    """Returns the budgets and the room of a call, after checking context and memory.

    Raises:
      ValueError: they do not fit; the message says what would.
    """
    (batch, width), context = shape, target.context_length
    budgets = max_new_tokens
    if budgets is None:  # fill each row's context, or the capacity if that is less
        known = [limit for limit in (context, capacity) if limit is not None]
        if not known:
            raise ValueError(
                "max_new_tokens=None fills the model's context, but this model does not state its length; pass a "
                "number, or capacity="
            )
        lengths = _lengths(width, prompt_length)
        validate.fits(int(np.max(lengths)), 0, capacity, context)
        budgets = min(known) - lengths
    room = _room(context, width, prompt_length, budgets, capacity)
    _check_memory(target, drafter, batch, width=width, room=room, capacity=capacity)
    return budgets, room


def _room(
    context: int | None,
    width: int,
    prompt_length: PerRow | None,
    max_new_tokens: PerRow,
    capacity: int | None,
) -> Room:
    """Returns the room of a call, after checking that the budgets fit it and the target."""
    if not is_concrete(max_new_tokens):
        if capacity is None:
            raise ValueError(
                "max_new_tokens is traced, so the shape of the result is unknown; pass capacity=, "
                "the prompt's width plus the largest possible number of new tokens"
            )
        if capacity < width:
            raise ValueError(f"capacity must be at least the prompt's width {width}, got {capacity}")
        validate.fits(width, capacity - width, None, context)
        return Room(max(bucket(width), capacity), capacity - width)
    lengths, budgets = np.broadcast_arrays(_lengths(width, prompt_length), np.asarray(max_new_tokens))
    # Python integers: a sum of int64 could wrap around.
    rows = [(int(length), int(new)) for length, new in zip(lengths.flat, budgets.flat, strict=True)]
    validate.fits(*max(rows, key=sum), capacity, context)
    if capacity is not None:  # sizes that no budget changes
        return Room(max(bucket(width), capacity), capacity)
    most = bucket(max(new for _, new in rows))
    return Room(bucket(width) + most, most)


def _lengths(width: int, prompt_length: PerRow | None) -> Any:
    """Returns each row's prompt length, or the prompt's width if the lengths are traced."""
    if prompt_length is None or not is_concrete(prompt_length):
        return np.int64(width)
    return np.asarray(prompt_length, np.int64)


def _check_memory(target: Model, drafter: Drafter, batch: int, *, width: int, room: Room, capacity: int | None) -> None:
    """Raises `ValueError` if no device can hold the cache, or a round's logits; the message says what to lower."""
    k, nodes = drafter.max_drafts, drafter.lengths[-1]
    logits = 4 * batch * (nodes + 1) * target.vocab_size
    # A traced model may be compiled for absent devices, such as those of a topology.
    is_here = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(target))
    if logits > _FEW_BYTES and is_here:
        memory.check(logits, f"scoring {nodes} drafts a row", "lower the drafter's k, or use a smaller tree")
    slots = room.tokens + k + 1
    if batch * slots <= _FEW_SLOTS:
        return
    parts = {
        "lower capacity" if capacity is not None else "lower max_new_tokens": room.new,
        "lower the drafter's k": k,
        "pass fewer or shorter prompts": width,
    }
    advice = max(parts, key=lambda name: parts[name])
    if is_here:
        needed = _cache_bytes(target, batch, slots) + _SLOT * batch * slots
        memory.check(needed, f"a cache of {slots} tokens for {batch} row{'s' * (batch > 1)}", advice)
    if slots > LARGEST:
        raise ValueError(f"a text holds at most {LARGEST} tokens, got room for {slots}; {advice}")


def _cache_bytes(target: Model, batch: int, slots: int) -> int:
    """Returns the size of the target's cache in bytes; extrapolated for shapes beyond what JAX accepts."""
    size = lambda count: memory.size_of(jax.eval_shape(lambda: target.init_cache(batch, count)))  # noqa: E731
    few = min(slots, 2**16)
    if few == slots:
        return size(slots)
    return size(few) + (size(few) - size(few // 2)) * (slots - few) // (few - few // 2)
