"""Reduces a vocabulary that is split over devices: each looks through its own part, and one exchange tells all of it.

A reduction over a split axis waits for the other devices, and then the next one does, which costs more than what they
send: a few numbers. Here the parts are an axis of their own, `[..., v]` cut into `[..., n, v / n]`, so that a reduction
of the last one stays on its device, and what several of them find is sent together.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from jaxspec.core.layout import Layout, Unsharded

_NONE = Unsharded()
_LAYOUT: contextvars.ContextVar[Layout] = contextvars.ContextVar("layout", default=_NONE)


@contextlib.contextmanager
def over_devices(layout: Layout) -> Iterator[None]:
    """Traces reductions as those of arrays that lie as a model of this layout has them.

    With automatic axes an array does not say how it is split.

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


def on_one_device() -> bool:
    """Returns whether what is traced now is for models that are on no mesh."""
    return _LAYOUT.get() == _NONE


def parts_of(values: Shaped[Array, "*rows v"]) -> int:
    """Counts the parts that the last axis, a vocabulary, is split into; 1 where each device has all of it."""
    return _LAYOUT.get().vocab_parts(values.shape[-1]) if values.ndim > 1 else 1


def cut(values: Shaped[Array, "*rows v"]) -> Shaped[Array, "*rows n w"]:
    """Returns a vocabulary's values part by part.

    Example:
        >>> jaxspec.core.parts.cut(jnp.zeros((2, 310))).shape
        (2, 1, 310)
    """
    count = parts_of(values)
    return values.reshape(*values.shape[:-1], count, values.shape[-1] // count)


def token_ids(parts: Shaped[Array, "*rows n w"]) -> Int[Array, "#*rows n w"]:
    """Returns the tokens that the values of parts belong to, int32."""
    shape = parts.shape[-2:]
    return jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(*(1,) * (parts.ndim - 2), *shape)


def exchange(*found: Shaped[Array, "b ... n"]) -> list[Shaped[Array, "b ... n"]]:
    """Gives all devices what each has found in its part; as many arrays as there are, in one exchange.

    Args:
      found: float32, float64 or int32.
    """
    if all(one.shape[-1] == 1 for one in found):
        return list(found)
    # As integers: devices may round floats that are none to zero, but only where they reckon with them.
    wide = any(one.dtype == jnp.float64 for one in found)
    integer = jnp.dtype(jnp.int64 if wide else jnp.int32)
    flat = [
        _as_integers(one, integer).reshape(one.shape[0], math.prod(one.shape[1:-1]), one.shape[-1]) for one in found
    ]
    told = _LAYOUT.get().rows(jnp.concatenate(flat, axis=1))
    ends = [sum(one.shape[1] for one in flat[:index]) for index in range(1, len(flat))]
    pieces = jnp.split(told, ends, axis=1)
    return [_as_before(piece, one) for piece, one in zip(pieces, found, strict=True)]


def highest(scores: Float[Array, "b *rows n"], tokens: Int[Array, "b *rows n"]) -> Int[Array, "b *rows"]:
    """Returns the token of the part with the highest score; of equals, and of tokens within a part, the first's."""
    return in_part(tokens, jnp.argmax(scores, axis=-1))


def whole(values: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
    """Returns an array complete on every device but for its rows: how what follows is split does not reach before it.

    Example:
        >>> jaxspec.core.parts.whole(jnp.ones((2, 3))).shape
        (2, 3)
    """
    return _LAYOUT.get().rows(values)


def replicated(values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Returns an array complete on every device, its rows too.

    Example:
        >>> jaxspec.core.parts.replicated(jnp.ones((2, 3))).shape
        (2, 3)
    """
    return _LAYOUT.get().replicate(values)


def in_part(values: Shaped[Array, "b *rows n"], part: Int[Array, "b *rows"]) -> Shaped[Array, "b *rows"]:
    """Returns the value of one part."""
    # One operation; a gather is four on a TPU.
    own = jax.lax.broadcasted_iota(part.dtype, values.shape, values.ndim - 1) == part[..., None]
    return jnp.sum(values, axis=-1, dtype=values.dtype, where=own)


def at_tokens(values: Float[Array, "b *rows v"], tokens: Int[Array, "b *rows"]) -> Float[Array, "b *rows"]:
    """Returns the value of one token of each row.

    Example:
        >>> jaxspec.core.parts.at_tokens(jnp.asarray([[0.5, 0.25]]), jnp.asarray([1])).tolist()
        [0.25]
    """
    if parts_of(values) == 1:
        return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]
    (found,) = exchange(find(values, tokens[..., None]))
    return jnp.max(found, axis=-1)


def find(values: Float[Array, "b ... v"], tokens: Int[Array, "b ... #n"]) -> Float[Array, "b ... n"]:
    """Returns what each part has at a token, its own or the same for all: -inf where it has not that token."""
    parts = cut(values)
    return jnp.max(jnp.where(token_ids(parts) == tokens[..., None], parts, -jnp.inf), axis=-1)


def _as_integers(values: Array, integer: jnp.dtype) -> Array:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values.astype(integer)
    return jax.lax.bitcast_convert_type(values.astype(jnp.float64 if integer.itemsize == 8 else jnp.float32), integer)


def _as_before(told: Array, like: Array) -> Array:
    if jnp.issubdtype(like.dtype, jnp.floating):
        told = jax.lax.bitcast_convert_type(told, jnp.float64 if told.dtype.itemsize == 8 else jnp.float32)
    return told.astype(like.dtype).reshape(like.shape)
