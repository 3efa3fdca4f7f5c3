"""Vectors as int8 and one scale each: whole numbers from -127 to 127."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8

_MOST = 127.0


def quantise(x: Float[Array, "*n d"]) -> tuple[Int8[Array, "*n d"], Float[Array, "*n"]]:
    """Whole numbers and scales of the vectors along the last axis; of zeros, zeros."""
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / _MOST
    safe = jnp.where(scale > 0, scale, 1.0)
    return jnp.round(wide / safe[..., None]).astype(jnp.int8), scale


def dequantise(values: Int8[Array, "*n d"], scale: Float[Array, "*n"]) -> Float[Array, "*n d"]:
    """What they stand for, float32."""
    return values.astype(jnp.float32) * scale[..., None]
