"""Works out the room that a call needs: budgets up to the context, the slots of its buffers, and whether they fit."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from jaxspec.core import memory, validate
from jaxspec.core.model import Model
from jaxspec.core.values import LARGEST, is_concrete
from jaxspec.drafters.base import Drafter

PerRow: TypeAlias = Array | np.ndarray | np.integer | int | Sequence[int] | Sequence[Array | np.integer | int]

_SMALLEST_BUCKET = 16
# Rows times slots, and bytes of a round's logits, below which nothing is worked out: any machine has them.
_FEW_SLOTS, _FEW_BYTES = 4096, 2**27
# Bytes of a slot besides the cache: a token, two log-probabilities, and whether it was drafted.
_SLOT = 13


def bucket(size: int) -> int:
    """Returns the least of 16, 24, 32, 48, 64, 96, ... that is at least `size`."""
    power = _SMALLEST_BUCKET
    while power < size:
        if power + power // 2 >= size:
            return power + power // 2
        power *= 2
    return power


def make_room(
    target: Model,
    drafter: Drafter,
    shape: tuple[int, int],
    prompt_length: PerRow | None,
    max_new_tokens: PerRow | None,
    capacity: int | None,
) -> tuple[PerRow, int]:
    """Returns the budgets, and the new-token slots of the buffers, once all of it fits the target and the memory.

    Raises:
      ValueError: it does not fit; the text says what does.
    """
    (batch, width), context = shape, target.context_length
    max_new_tokens = _budgets(max_new_tokens, context, width, prompt_length, capacity)
    max_new = _new_slots(context, width, prompt_length, max_new_tokens, capacity)
    _check_memory(target, drafter, batch, width=width, max_new=max_new, capacity=capacity)
    return max_new_tokens, max_new


def _budgets(
    max_new_tokens: PerRow | None,
    context: int | None,
    width: int,
    prompt_length: PerRow | None,
    capacity: int | None,
) -> PerRow:
    """Returns `max_new_tokens`; for `None` what each row has left of the context, or of the capacity if that is less.

    Raises:
      ValueError: it is `None`, and there is no limit.
    """
    if max_new_tokens is not None:
        return max_new_tokens
    known = [limit for limit in (context, capacity) if limit is not None]
    if not known:
        raise ValueError(
            "max_new_tokens=None is up to the model's context, which this model does not state; pass a number, "
            "or capacity="
        )
    lengths = _lengths(width, prompt_length)
    validate.fits(int(np.max(lengths)), 0, capacity, context)
    return min(known) - lengths


def _new_slots(
    context: int | None,
    width: int,
    prompt_length: PerRow | None,
    max_new_tokens: PerRow,
    capacity: int | None,
) -> int:
    """Returns the new-token slots of the buffers, once what is asked for fits them and the target."""
    if not is_concrete(max_new_tokens):
        if capacity is None:
            raise ValueError(
                "max_new_tokens is traced, so the shape of the result is open; pass capacity=, "
                "the prompt's width plus the most new tokens there can be"
            )
        if capacity < width:
            raise ValueError(f"capacity must be at least the prompt's width {width}, got {capacity}")
        validate.fits(width, capacity - width, None, context)
        return capacity - width
    lengths, budgets = np.broadcast_arrays(_lengths(width, prompt_length), np.asarray(max_new_tokens))
    # Python's integers: a sum of int64 could wrap.
    rows = [(int(length), int(new)) for length, new in zip(lengths.flat, budgets.flat, strict=True)]
    validate.fits(*max(rows, key=sum), capacity, context)
    most = max(new for _, new in rows)
    return bucket(most) if capacity is None else max(capacity - width, most)


def _lengths(width: int, prompt_length: PerRow | None) -> Any:
    """Returns each row's prompt length, or the width where the host cannot read them."""
    if prompt_length is None or not is_concrete(prompt_length):
        return np.int64(width)
    return np.asarray(prompt_length, np.int64)


def _check_memory(
    target: Model, drafter: Drafter, batch: int, *, width: int, max_new: int, capacity: int | None
) -> None:
    """Raises `ValueError` if no device could hold the cache, or a round's logits; the text says what to lower."""
    k, nodes = drafter.max_drafts, drafter.lengths[-1]
    logits = 4 * batch * (nodes + 1) * target.vocab_size
    # A traced model may be compiled for devices that are not here, such as those of a topology.
    is_here = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(target))
    if logits > _FEW_BYTES and is_here:
        memory.check(logits, f"scoring {nodes} drafts a row", "lower the drafter's k, or take a smaller tree")
    slots = width + max_new + k + 1
    if batch * slots <= _FEW_SLOTS:
        return
    parts = {
        "lower capacity" if capacity is not None else "lower max_new_tokens": max_new,
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
    """Returns the bytes of the target's cache; beyond shapes that JAX takes, as it grows up to there."""
    size = lambda count: memory.size_of(jax.eval_shape(lambda: target.init_cache(batch, count)))  # noqa: E731
    few = min(slots, 2**16)
    if few == slots:
        return size(slots)
    return size(few) + (size(few) - size(few // 2)) * (slots - few) // (few - few // 2)
