"""Sums the last axis in an order that does not depend on how many rows there are."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.parts import cut, exchange, on_one_device, parts_of

# Sums are written out: more of them take longer to compile.
_LANES, _MOST_SUMS = 64, 32
# Of more lanes each is computed once, and not by every sum that it is part of.
_FUSED_LANES = 512


def in_one_order() -> bool:
    """Returns whether sums that are traced now have one order on a CPU."""
    return on_one_device()


def row_sum(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Sums each row; on a CPU its bits depend on the row alone, where its axis is not split over devices.

    XLA's CPU compiler sums in another order from eight rows on, so that a token's norm would depend on how many tokens
    are fed with it. Sums that are written out one by one are not reordered.

    Example:
        >>> jaxspec.core.sums.row_sum(jnp.arange(8.0).reshape(2, 4)).tolist()
        [6.0, 22.0]
    """
    if x.shape[-1] == 0 or not in_one_order() or _is_split(x):
        return jnp.sum(x, axis=-1)
    return jax.lax.platform_dependent(x, cpu=_in_order, default=lambda x: jnp.sum(x, axis=-1))


def log_sum_exp(logits: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Returns the logarithm of each row's sum of exponentials, by `row_sum`.

    Example:
        >>> jaxspec.core.sums.log_sum_exp(jnp.zeros((2, 4))).round(3).tolist()
        [1.386, 1.386]
    """
    if parts_of(logits) == 1:
        most = jnp.max(logits, axis=-1, keepdims=True)
        return most[..., 0] + jnp.log(row_sum(jnp.exp(logits - most)))
    most, total = joined(*exchange(*exponentials(cut(logits))))
    return most + jnp.log(total)


def exponentials(parts: Float[Array, "*rows n w"]) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the maximum of each part of a vocabulary, and the sum of the exponentials relative to it."""
    most = jnp.max(parts, axis=-1)
    return most, jnp.sum(jnp.exp(parts - finite(most)[..., None]), axis=-1)


def joined(
    most: Float[Array, "*rows n"], sums: Float[Array, "*rows n"], scale: Float[Array, "..."] | float = 1.0
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Returns the maximum, and the sum of exponentials relative to it, from those of the parts.

    Example:
        >>> most, total = jaxspec.core.sums.joined(jnp.zeros((1, 2)), jnp.asarray([[1.0, 2.0]]))
        >>> most.tolist(), total.tolist()
        ([0.0], [3.0])
    """
    highest = jnp.max(most, axis=-1, keepdims=True)
    return highest[..., 0], jnp.sum(sums * jnp.exp((finite(most) - highest) / scale), axis=-1)


def finite(most: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns a maximum that values can be taken relative to, where all of them are minus infinity too."""
    return jnp.maximum(most, jnp.finfo(most.dtype).min)


def rounded(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns a product as it is, rounded before it is added to anything.

    A CPU's compiler rounds a product and a sum once together where it sees both, and takes barriers away before that:
    the bits would depend on what else it compiles them with. It does not see through a maximum.

    Example:
        >>> jaxspec.core.sums.rounded(jnp.asarray([2.0, -jnp.inf])).tolist()
        [2.0, -3.4028234663852886e+38]
    """
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def _in_order(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    x = rounded(x)
    while (width := x.shape[-1]) > _LANES:
        lanes = _LANES
        while lanes * _MOST_SUMS < width:
            lanes *= 2
        x = _fold(x, lanes)
    lanes = 1
    while lanes < x.shape[-1]:
        lanes *= 2
    x = _pad(x, lanes)
    while lanes > 1:
        lanes //= 2
        x = x[..., :lanes] + x[..., lanes:]
    return x[..., 0]


def _fold(x: Float[Array, "*rows n"], lanes: int) -> Float[Array, "*rows lanes"]:
    """Adds the pieces of `lanes` numbers, one after the other."""
    sums = x[..., :lanes]
    for start in range(lanes, x.shape[-1], lanes):
        sums = sums + _pad(x[..., start : start + lanes], lanes)
    return jax.lax.optimization_barrier(sums) if lanes > _FUSED_LANES else sums


def _pad(x: Float[Array, "*rows n"], width: int) -> Float[Array, "*rows width"]:
    """Appends zeros; an array that is wide enough is returned as it is."""
    missing = width - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _is_split(x: Float[Array, "*rows n"]) -> bool:
    """Returns whether the last axis is split over a mesh with explicit axes."""
    spec = jax.typeof(x).sharding.spec
    return len(spec) == x.ndim and spec[-1] is not None
