"""Puts a few tokens' vectors at the slots where they belong, inside a kernel: by a product, which a TPU does best."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped


def place(
    places: Int[Array, "1 u"], behind: Any, fresh: Shaped[Array, "u d"], cached: Shaped[Array, "s d"]
) -> Shaped[Array, "s d"]:
    """Returns slots with each fresh vector at its place, and zeros behind the cached ones elsewhere.

    Args:
      places: how many slots behind the last cached one each vector belongs, from 0; negative is nowhere.
      behind: which place the first of the slots is; negative where it is cached.
      fresh: vectors.
      cached: what stands in the slots; from place 0 on it is stale, whatever it is.
    """
    slots = behind + jax.lax.broadcasted_iota(jnp.int32, (cached.shape[0], 1), 0)
    # Each slot sums one vector times one: exact.
    placed = product((slots == places).astype(_exact(fresh.dtype)), fresh.astype(_exact(fresh.dtype)), 0)
    return jnp.where(slots < 0, cached, placed.astype(cached.dtype))


def place_row(
    places: Int[Array, "1 u"], behind: Any, fresh: Float[Array, "1 u"], cached: Float[Array, "1 s"]
) -> Float[Array, "1 s"]:
    """Returns `place` of numbers that lie side by side, as many slots as `cached` has."""
    slots = behind + jax.lax.broadcasted_iota(jnp.int32, (cached.shape[1], 1), 0)
    placed = product(fresh, (slots == places).astype(fresh.dtype), 1)
    return jnp.where(behind + jax.lax.broadcasted_iota(jnp.int32, cached.shape, 1) < 0, cached, placed)


def product(x: Float[Array, "n i"], y: Float[Array, "..."], axis: int) -> Float[Array, "n m"]:
    """Multiplies matrices over the last axis of `x` and this axis of `y`, to float32; float32 is not rounded before."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x, y, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _exact(dtype: Any) -> Any:
    """Returns the dtype of products that hold every number of `dtype`: integers up to 127 in bfloat16."""
    return jnp.bfloat16 if jnp.dtype(dtype).itemsize == 1 else dtype
