"""Maps a draft vocabulary, the tokens that a head or draft model may guess, to the target's larger one.

The head's other columns are never computed; a token outside has probability 0 in the draft's distribution, which
keeps the target's distribution as any other draft does (EAGLE-3, Li et al. 2503.01840).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.parts import whole


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


def chosen(draft_vocabulary: Any, vocab_size: int, tokenizer: Tokenizer | None) -> np.ndarray:
    """Returns the tokens of a draft vocabulary that a user asks for.

    Args:
      draft_vocabulary: the ids of tokens; or how many of the lowest, to which the tokenizer's special tokens and ends
        of text are added.
      vocab_size: the draft model's.
      tokenizer: the draft model's; `None` if it has none.

    Returns:
      `int32[n]`, rising.

    Raises:
      TypeError: it is neither a number nor integers.
      ValueError: the number is not in [1, v]; or ids are, or repeat, or there is none.
    """
    if isinstance(draft_vocabulary, int | np.integer) and not isinstance(draft_vocabulary, bool):
        if not 1 <= draft_vocabulary <= vocab_size:
            raise ValueError(f"draft_vocabulary must be between 1 and {vocab_size} tokens, got {draft_vocabulary}")
        return np.array([*range(draft_vocabulary), *_special(tokenizer, int(draft_vocabulary), vocab_size)], np.int32)
    ids = np.asarray(draft_vocabulary)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"draft_vocabulary must be a number of tokens or a list of their ids, got {draft_vocabulary!r}")
    ids = np.sort(ids)
    if not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size:
        span = f"{ids[0]} to {ids[-1]}" if len(ids) else "none"
        raise ValueError(f"draft_vocabulary must be ids of a vocabulary of {vocab_size} tokens, got {span}")
    if len(repeated := ids[1:][ids[1:] == ids[:-1]]):
        raise ValueError(f"draft_vocabulary must have each id once, got {repeated[0]} twice; pass np.unique(ids)")
    return ids.astype(np.int32)


def _special(tokenizer: Tokenizer | None, start: int, vocab_size: int) -> list[int]:
    """Returns the special tokens and ends of text from `start` on."""
    if tokenizer is None:
        return []
    known = range(start, min(vocab_size, tokenizer.vocab_size))
    return [index for index in known if tokenizer.is_special(index) or index in tokenizer.eos_token_ids]


def places(ids: Int[Array, "n"], vocab_size: int) -> Int[Array, "v"]:
    """Returns the place of each of the target's tokens in the draft vocabulary; -1 where it is not in it."""
    count = jnp.arange(ids.shape[0], dtype=jnp.int32)
    return jnp.full(vocab_size, -1, jnp.int32).at[ids].set(count)


def expand(logits: Float[Array, "*rows n"], ids: Int[Array, "n"], vocab_size: int) -> Float[Array, "*rows v"]:
    """Returns the same logits over the target's vocabulary, -inf outside of the draft's."""
    if ids.shape[0] == vocab_size:
        return logits
    blank = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    # Sent once: a device's part of one vocabulary lies anywhere in the other.
    return blank.at[..., ids].set(whole(logits), unique_indices=True, indices_are_sorted=True)
