"""Takes the argmax over a vocabulary, in the form that each platform runs fastest."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.parts import cut, exchange, highest, parts_of


def argmax(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """Returns the token with the highest score, int32: the first of equals, any token where a score is NaN."""
    if parts_of(scores) == 1:
        return _on_one_device(scores)
    return highest(*exchange(*leaders(scores)))


def leaders(scores: Float[Array, "*b v"]) -> tuple[Float[Array, "*b n"], Int[Array, "*b n"]]:
    """Returns the highest score of each part of a vocabulary that is split, and its token, on the part's device."""
    return leaders_of(cut(scores))


def leaders_of(parts: Float[Array, "*b n w"]) -> tuple[Float[Array, "*b n"], Int[Array, "*b n"]]:
    """Returns the same of scores that are cut into parts."""
    first = jnp.arange(parts.shape[-2], dtype=jnp.int32) * parts.shape[-1]
    return jnp.max(parts, axis=-1), _on_one_device(parts) + first.reshape(*(1,) * (parts.ndim - 2), -1)


def _on_one_device(scores: Float[Array, "*b v"]) -> Int[Array, "*b"]:
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
