"""Averages over the last axis in an order that does not depend on how many rows there are."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.sums import row_sum


def row_mean(x: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Averages each row; on a CPU its bits depend on the row alone (`jaxspec.core.sums.row_sum`).

    Example:
        >>> jaxspec.ops.mean.row_mean(jnp.arange(8.0).reshape(2, 4)).tolist()
        [1.5, 5.5]
    """
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    return (row_sum(wide) / x.shape[-1]).astype(x.dtype)
