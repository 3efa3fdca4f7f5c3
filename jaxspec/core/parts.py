"""Reduces a vocabulary that is split over devices: each reduces its own part, and one exchange combines the results.

Each reduction over a split axis waits for the other devices, which costs more than sending its few numbers. Here the
parts are a separate axis, `[..., v]` cut into `[..., n, v / n]`: a reduction of the last axis stays on its device, and
the results of several are sent together.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType
from jaxtyping import Float, Int, Shaped

from jaxspec.core.layout import Layout, Unsharded

_NONE = Unsharded()
_LAYOUT: contextvars.ContextVar[Layout] = contextvars.ContextVar("layout", default=_NONE)


@contextlib.contextmanager
def over_devices(layout: Layout) -> Iterator[None]:
    """Traces reductions for arrays that are split as in a model of this layout.

    With automatic axes, an array does not carry its sharding.

    Example:
        >>> with jaxspec.core.parts.over_devices(target.placement):
        ...     jaxspec.core.sums.row_sum(jnp.ones((2, 4))).tolist()
        [4.0, 4.0]
    """
    before = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(before)


def current_layout() -> Layout:
    """Returns the layout that the current trace is for."""
    return _LAYOUT.get()


def on_one_device() -> bool:
    """Returns whether the current trace is for models without a mesh."""
    return _LAYOUT.get() == _NONE


def summed_on_each(
    function: Callable[..., Array], arguments: tuple[Array, ...], axes: tuple[tuple[Any, ...], ...]
) -> Array:
    """Calls a function on each device's parts, and adds up the results, which are laid out like the first argument.

    Args:
      function: takes and returns arrays, without communication between devices.
      arguments: the complete arrays.
      axes: the logical axes of each argument.
    """
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        return function(*arguments)  # each device runs its own model
    return _LAYOUT.get().on_each(function, arguments, axes, like=0, add=True)


def parts_of(values: Shaped[Array, "*rows v"]) -> int:
    """Counts the parts that the last axis, a vocabulary, is split into; 1 if each device has all of it."""
    return _LAYOUT.get().vocab_parts(values.shape[-1]) if values.ndim > 1 else 1


def cut(values: Shaped[Array, "*rows v"]) -> Shaped[Array, "*rows n w"]:
    """Splits the last axis into the vocabulary's parts.

    Example:
        >>> jaxspec.core.parts.cut(jnp.zeros((2, 310))).shape
        (2, 1, 310)
    """
    count = parts_of(values)
    return values.reshape(*values.shape[:-1], count, values.shape[-1] // count)


def token_ids(parts: Shaped[Array, "*rows n w"]) -> Int[Array, "#*rows n w"]:
    """Returns the token id of each value, int32."""
    shape = parts.shape[-2:]
    return jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(*(1,) * (parts.ndim - 2), *shape)


def exchange(*found: Shaped[Array, "b ... n"]) -> list[Shaped[Array, "b ... n"]]:
    """Gathers the devices' partial results on all of them: all arrays in one exchange.

    Args:
      found: partial results, one per part along the last axis; float32, float64 or int32.
    """
    if all(one.shape[-1] == 1 for one in found):
        return list(found)
    # As integers: devices may flush bit patterns of non-floats to zero when they compute with them.
    wide = any(one.dtype == jnp.float64 for one in found)
    integer = jnp.dtype(jnp.int64 if wide else jnp.int32)
    flat = [
        _as_integers(one, integer).reshape(one.shape[0], math.prod(one.shape[1:-1]), one.shape[-1]) for one in found
    ]
    gathered = _LAYOUT.get().rows(jnp.concatenate(flat, axis=1))
    ends = [sum(one.shape[1] for one in flat[:index]) for index in range(1, len(flat))]
    pieces = jnp.split(gathered, ends, axis=1)
    return [_as_before(piece, one) for piece, one in zip(pieces, found, strict=True)]


def highest(scores: Float[Array, "b *rows n"], tokens: Int[Array, "b *rows n"]) -> Int[Array, "b *rows"]:
    """Returns the token of the part with the highest score; ties go to the first part."""
    return in_part(tokens, jnp.argmax(scores, axis=-1))


def unsharded(values: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
    """Replicates all axes but the rows, so that the sharding of later operations does not propagate to earlier ones.

    Example:
        >>> jaxspec.core.parts.unsharded(jnp.ones((2, 3))).shape
        (2, 3)
    """
    return _LAYOUT.get().rows(values)


def replicated(values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Replicates an array on every device, its rows too.

    Example:
        >>> jaxspec.core.parts.replicated(jnp.ones((2, 3))).shape
        (2, 3)
    """
    return _LAYOUT.get().replicate(values)


def in_part(values: Shaped[Array, "b *rows n"], part: Int[Array, "b *rows"]) -> Shaped[Array, "b *rows"]:
    """Selects the value of one part."""
    # One operation; a gather takes four on a TPU.
    own = jax.lax.broadcasted_iota(part.dtype, values.shape, values.ndim - 1) == part[..., None]
    return jnp.sum(values, axis=-1, dtype=values.dtype, where=own)


def at_tokens(values: Float[Array, "b *rows v"], tokens: Int[Array, "b *rows"]) -> Float[Array, "b *rows"]:
    """Selects the value of one token per row.

    Example:
        >>> jaxspec.core.parts.at_tokens(jnp.asarray([[0.5, 0.25]]), jnp.asarray([1])).tolist()
        [0.25]
    """
    if parts_of(values) == 1:
        return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]
    (found,) = exchange(find(values, tokens[..., None]))
    return jnp.max(found, axis=-1)


def find(values: Float[Array, "b ... v"], tokens: Int[Array, "b ... #n"]) -> Float[Array, "b ... n"]:
    """Looks up tokens in each part, one for all parts or one per part; -inf in parts without the token."""
    parts = cut(values)
    return jnp.max(jnp.where(token_ids(parts) == tokens[..., None], parts, -jnp.inf), axis=-1)


def _as_integers(values: Array, integer: jnp.dtype) -> Array:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values.astype(integer)
    return jax.lax.bitcast_convert_type(values.astype(jnp.float64 if integer.itemsize == 8 else jnp.float32), integer)


def _as_before(gathered: Array, like: Array) -> Array:
    if jnp.issubdtype(like.dtype, jnp.floating):
        gathered = jax.lax.bitcast_convert_type(gathered, jnp.float64 if gathered.dtype.itemsize == 8 else jnp.float32)
    return gathered.astype(like.dtype).reshape(like.shape)


def argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Returns the token with the highest score, int32: the first in a tie, any token if a score is NaN."""
    if parts_of(scores) == 1:
        return _on_one_device(scores)
    return highest(*exchange(*shard_argmax(scores)))


def shard_argmax(scores: Float[Array, "*b v"]) -> tuple[Float[Array, "*b n"], Int[Array, "*b n"]]:
    """Returns the highest score of each part of a split vocabulary, and its token, on the part's device."""
    return argmax_of_parts(cut(scores))


def argmax_of_parts(parts: Float[Array, "*b n w"]) -> tuple[Float[Array, "*b n"], Int[Array, "*b n"]]:
    """Returns the highest score of each part, and its token, of scores that are cut into parts."""
    first = jnp.arange(parts.shape[-2], dtype=jnp.int32) * parts.shape[-1]
    return jnp.max(parts, axis=-1), _on_one_device(parts) + first.reshape(*(1,) * (parts.ndim - 2), -1)


def _on_one_device(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    return jax.lax.platform_dependent(scores, cpu=_in_two_passes, default=_argmax)


def _argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _in_two_passes(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Finds the maximum, then the first index that has it.

    On a CPU, XLA does not vectorize a reduction of values with their indices, which takes five times as long.
    """
    # Without the barrier both passes may recompute the scores with different rounding, and none equals the maximum.
    scores = jax.lax.optimization_barrier(scores)
    ids = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    last = scores.shape[-1] - 1
    return jnp.min(jnp.where(scores == jnp.max(scores, axis=-1, keepdims=True), ids, last), axis=-1)
