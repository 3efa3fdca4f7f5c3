"""Orders what a pass leaves behind its reads of the cache."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped


def after(entries: Shaped[Array, "..."], x: Float[Array, "b t n"], axis: int) -> Shaped[Array, "..."]:
    """Returns the same entries, computed only after `x`: the last layer's output, which has read all of the cache.

    Keys are known before their own layer's attention. A write of them into the cache would then be free to run before
    that read, and the compiler keeps both apart by copying the entire cache on every step. Adding a zero that depends
    on `x` orders them.

    Args:
      entries: of a pass.
      x: what it ends in.
      axis: the rows of `entries`.

    Example:
        >>> jaxspec.core.order.after(jnp.ones((3, 2)), jnp.ones((2, 3, 4)), axis=1).shape
        (3, 2)
    """
    bits = jax.lax.bitcast_convert_type(x[:, 0, 0].astype(jnp.float32), jnp.int32)
    zero = jnp.minimum(jax.lax.shift_right_logical(bits, jnp.int32(1)), 0).astype(entries.dtype)
    return entries + zero.reshape(*(zero.shape[0] if number == axis else 1 for number in range(entries.ndim)))
