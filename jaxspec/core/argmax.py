"""Takes the argmax over a vocabulary, in the form that each platform runs fastest."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Returns the token with the highest score, int32: the first of equals, any token where a score is NaN."""
    return jax.lax.platform_dependent(scores, cpu=_in_two_passes, default=_argmax)


def _argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _in_two_passes(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Finds the maximum, then the first index that has it.

    XLA does not vectorize a reduction of values with their indices on a CPU: it takes five times as long.
    """
    # Without the barrier both passes may compute the scores, with different rounding: none would equal the maximum.
    scores = jax.lax.optimization_barrier(scores)
    ids = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    last = scores.shape[-1] - 1
    return jnp.min(jnp.where(scores == jnp.max(scores, axis=-1, keepdims=True), ids, last), axis=-1)
