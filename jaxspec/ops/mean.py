"""Averages over the last axis in an order that does not depend on how many rows there are."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

_MOST_LANES = 64


def row_mean(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Averages each row; on a CPU its bits depend on the row alone.

    XLA's CPU compiler sums in another order from eight rows on, so that a token's norm would depend on how many tokens
    are fed with it. Sums that are written out one by one are not reordered, and take as long.

    Example:
        >>> jaxspec.ops.mean.row_mean(jnp.arange(8.0).reshape(2, 4)).tolist()
        [1.5, 5.5]
    """
    return jax.lax.platform_dependent(x, cpu=_in_order, default=lambda x: jnp.mean(x, axis=-1))


def _in_order(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    width = x.shape[-1]
    lanes = min(width & -width, _MOST_LANES)  # a power of two that divides the width
    parts = x.reshape(*x.shape[:-1], width // lanes, lanes)
    sums = parts[..., 0, :]
    for part in range(1, parts.shape[-2]):
        sums = sums + parts[..., part, :]
    while lanes > 1:
        lanes //= 2
        sums = sums[..., :lanes] + sums[..., lanes:]
    return sums[..., 0] / width
