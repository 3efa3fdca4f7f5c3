"""Rotary position embeddings (Su et al. 2104.09864), in the half-split layout of Llama."""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.nn.config import Rope, RopeScaling


def apply_rope(
    x: Float[Array, "b t *heads d"], positions: Int[Array, "b t"], rope: Rope
) -> Float[Array, "b t *heads d"]:
    """Rotates each head vector by its position.

    Computed in float32 and returned in the dtype of `x`.
    """
    angles = positions[..., None].astype(jnp.float32) * frequencies(x.shape[-1], rope)[None, None]
    angles = angles.reshape(*angles.shape[:2], *(1,) * (x.ndim - 3), angles.shape[-1])
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def frequencies(head_dim: int, rope: Rope) -> Float[Array, "half"]:
    """By how many radians a position turns each pair of a head vector."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    plain = rope.theta**-exponents
    match rope.scaling:
        case None:
            return plain
        case RopeScaling(kind="linear", factor=factor):
            return plain / factor
        case scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(frequencies, scaling: RopeScaling):
    """Low frequencies are divided by the factor, high ones kept, those between blended."""
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = jnp.clip((rotations - scaling.low_freq_factor) / span, 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / scaling.factor
