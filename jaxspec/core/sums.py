"""Sums the last axis in an order that does not depend on the number of rows."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.parts import cut, exchange, on_one_device, parts_of

# Sums are unrolled: longer ones take longer to compile.
_LANES, _MOST_SUMS = 64, 32
# Wider lanes are computed once, instead of in every sum that reads them.
_FUSED_LANES = 512


def in_one_order() -> bool:
    """Returns whether sums in the current trace have a fixed order on a CPU."""
    return on_one_device()


def row_sum(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Sums each row; on a CPU the bits depend on the row alone, unless its axis is split over devices.

    From eight rows on, XLA's CPU compiler sums in another order, so that a token's norm would depend on the number of
    tokens fed with it. Unrolled sums are not reordered.

    Example:
        >>> jaxspec.core.sums.row_sum(jnp.arange(8.0).reshape(2, 4)).tolist()
        [6.0, 22.0]
    """
    if x.shape[-1] == 0 or not in_one_order() or _is_split(x):
        return jnp.sum(x, axis=-1)
    return jax.lax.platform_dependent(x, cpu=_in_order, default=_sum)


def log_sum_exp(logits: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Computes the log-sum-exp of each row with `row_sum`.

    Example:
        >>> jaxspec.core.sums.log_sum_exp(jnp.zeros((2, 4))).round(3).tolist()
        [1.386, 1.386]
    """
    if parts_of(logits) == 1:
        most = jnp.max(logits, axis=-1, keepdims=True)
        return most[..., 0] + jnp.log(row_sum(jnp.exp(logits - most)))
    most, total = merge_lse(*exchange(*exponentials(cut(logits))))
    return most + jnp.log(total)


def exponentials(parts: Float[Array, "*rows n w"]) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the maximum of each part of a vocabulary, and the sum of exponentials relative to it."""
    most = jnp.max(parts, axis=-1)
    return most, jnp.sum(jnp.exp(parts - finite(most)[..., None]), axis=-1)


def merge_lse(
    most: Float[Array, "*rows n"], sums: Float[Array, "*rows n"], scale: Float[Array, "..."] | float = 1.0
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Merges the maxima and sums of exponentials of parts into the maximum and the sum relative to it.

    Example:
        >>> most, total = jaxspec.core.sums.merge_lse(jnp.zeros((1, 2)), jnp.asarray([[1.0, 2.0]]))
        >>> most.tolist(), total.tolist()
        ([0.0], [3.0])
    """
    highest = jnp.max(most, axis=-1, keepdims=True)
    return highest[..., 0], jnp.sum(sums * jnp.exp((finite(most) - highest) / scale), axis=-1)


def finite(most: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Replaces a maximum of -inf, so that values minus it are not NaN."""
    return jnp.maximum(most, jnp.finfo(most.dtype).min)


def rounded(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Forces a product to be rounded before it is added to anything.

    A CPU compiler fuses a product and a sum that it sees together into one rounding, and removes barriers before that:
    the bits would depend on the surrounding code. It does not see through a maximum.

    Example:
        >>> jaxspec.core.sums.rounded(jnp.asarray([2.0, -jnp.inf])).tolist()
        [2.0, -3.4028234663852886e+38]
    """
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def _sum(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    return jnp.sum(x, axis=-1)


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
    """Adds pieces of `lanes` numbers in order."""
    sums = x[..., :lanes]
    for start in range(lanes, x.shape[-1], lanes):
        sums = sums + _pad(x[..., start : start + lanes], lanes)
    return jax.lax.optimization_barrier(sums) if lanes > _FUSED_LANES else sums


def _pad(x: Float[Array, "*rows n"], width: int) -> Float[Array, "*rows width"]:
    """Pads with zeros to `width`, if the array is narrower."""
    missing = width - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _is_split(x: Float[Array, "*rows n"]) -> bool:
    """Returns whether the last axis is split over a mesh with explicit axes."""
    spec = jax.typeof(x).sharding.spec
    return len(spec) == x.ndim and spec[-1] is not None


def row_mean(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Averages each row; on a CPU the bits depend on the row alone (`jaxspec.core.sums.row_sum`).

    Example:
        >>> jaxspec.core.sums.row_mean(jnp.arange(8.0).reshape(2, 4)).tolist()
        [1.5, 5.5]
    """
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    return (row_sum(wide) / x.shape[-1]).astype(x.dtype)
