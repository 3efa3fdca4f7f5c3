"""The place of the largest of many numbers, in the form each platform runs fastest."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """The token with the highest score, the first of equals; any token where a score is NaN."""
    return jax.lax.platform_dependent(scores, cpu=_in_two_passes, default=_argmax)


def _argmax(scores: Array) -> Array:
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _in_two_passes(scores: Array) -> Array:
    """XLA does not vectorise a reduction of values with their places on a CPU: it takes five times as long."""
    # Not to be computed in both passes: rounded otherwise in one of them, none would equal the highest.
    scores = jax.lax.optimization_barrier(scores)
    ids = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    last = scores.shape[-1] - 1
    return jnp.min(jnp.where(scores == jnp.max(scores, axis=-1, keepdims=True), ids, last), axis=-1)
