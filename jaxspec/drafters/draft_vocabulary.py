"""Maps a draft vocabulary, the tokens that a head may guess, to the target's larger one.

The head's other columns are never computed; a token outside has probability 0 in the draft's distribution, which
keeps the target's distribution as any other draft does (EAGLE-3, Li et al. 2503.01840).
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int


def most_frequent(token_counts: np.ndarray, size: int) -> np.ndarray:
    """Returns the `size` most frequent tokens, in rising order of their ids; of equals the lower id.

    Args:
      token_counts: `int64[v]`.
      size: how many; `v` is the whole vocabulary.

    Returns:
      `int32[size]`.

    Raises:
      ValueError: `size` is not in [1, v].
    """
    if not 1 <= size <= len(token_counts):
        raise ValueError(f"a draft vocabulary has between 1 and {len(token_counts)} tokens, got {size}")
    return np.sort(np.argsort(-token_counts, kind="stable")[:size]).astype(np.int32)


def places(ids: Int[Array, "n"], vocab_size: int) -> Int[Array, "v"]:
    """Returns the place of each of the target's tokens in the draft vocabulary; -1 where it is not in it."""
    count = jnp.arange(ids.shape[0], dtype=jnp.int32)
    return jnp.full(vocab_size, -1, jnp.int32).at[ids].set(count)


def expand(logits: Float[Array, "*rows n"], ids: Int[Array, "n"], vocab_size: int) -> Float[Array, "*rows v"]:
    """Returns the same logits over the target's vocabulary, -inf outside of the draft's."""
    if ids.shape[0] == vocab_size:
        return logits
    blank = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return blank.at[..., ids].set(logits, unique_indices=True, indices_are_sorted=True)
