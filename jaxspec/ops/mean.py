"""Averages over the last axis in an order that does not depend on how many rows there are."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

# Sums are written out: more of them take longer to compile.
_LANES, _MOST_SUMS = 64, 32


def row_mean(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Averages each row; on a CPU its bits depend on the row alone, where its axis is not split over devices.

    XLA's CPU compiler sums in another order from eight rows on, so that a token's norm would depend on how many tokens
    are fed with it. Sums that are written out one by one are not reordered, and take as long.

    Example:
        >>> jaxspec.ops.mean.row_mean(jnp.arange(8.0).reshape(2, 4)).tolist()
        [1.5, 5.5]
    """
    if x.shape[-1] == 0 or _is_split(x):
        return jnp.mean(x, axis=-1)
    return jax.lax.platform_dependent(x, cpu=_in_order, default=lambda x: jnp.mean(x, axis=-1))


def _in_order(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    width = x.shape[-1]
    lanes = _LANES
    while lanes * _MOST_SUMS < width:
        lanes *= 2
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    wide = jnp.pad(wide, [(0, 0)] * (x.ndim - 1) + [(0, -width % lanes)])
    parts = wide.reshape(*x.shape[:-1], -1, lanes)
    sums = parts[..., 0, :]
    for part in range(1, parts.shape[-2]):
        sums = sums + parts[..., part, :]
    while lanes > 1:
        lanes //= 2
        sums = sums[..., :lanes] + sums[..., lanes:]
    return (sums[..., 0] / width).astype(x.dtype)


def _is_split(x: Float[Array, "*rows n"]) -> bool:
    """Returns whether the last axis is split over a mesh with explicit axes."""
    spec = jax.typeof(x).sharding.spec
    return len(spec) == x.ndim and spec[-1] is not None
