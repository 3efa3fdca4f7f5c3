"""Maps a draft vocabulary, the tokens that a head or draft model can guess, into the target's larger one.

Logits of other tokens are never computed; those tokens have probability 0 in the draft distribution. Like any draft
distribution, it preserves the target's distribution (EAGLE-3, Li et al. 2503.01840).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.parts import unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context, Deferred
from jaxspec.drafters.processed import process_part


def most_frequent(token_counts: np.ndarray, size: int) -> np.ndarray:
    """Returns the ids of the `size` most frequent tokens, in increasing order; ties go to the lower id.

    Args:
      token_counts: how often each token occurs, `int64[v]`.
      size: the number of tokens to return.

    Returns:
      `int32[size]`.

    Raises:
      ValueError: `size` is not in [1, v].
    """
    if not 1 <= size <= len(token_counts):
        raise ValueError(f"a draft vocabulary has between 1 and {len(token_counts)} tokens, got {size}")
    return np.sort(np.argsort(-token_counts, kind="stable")[:size]).astype(np.int32)


def chosen(draft_vocabulary: Any, vocab_size: int, tokenizer: Tokenizer | None) -> np.ndarray:
    """Returns the ids of a draft vocabulary, given as ids or as a number.

    Args:
      draft_vocabulary: the ids of tokens; or how many of the lowest ids, to which the tokenizer's special tokens and
        end-of-text tokens are added.
      vocab_size: the draft model's.
      tokenizer: the draft model's; `None` if it has none.

    Returns:
      `int32[n]`, increasing.

    Raises:
      TypeError: `draft_vocabulary` is neither a number nor integers.
      ValueError: the number is not in [1, v]; or ids are out of range, repeated or missing.
    """
    if isinstance(draft_vocabulary, int | np.integer) and not isinstance(draft_vocabulary, bool):
        if not 1 <= draft_vocabulary <= vocab_size:
            raise ValueError(f"draft_vocabulary must be between 1 and {vocab_size} tokens, got {draft_vocabulary}")
        return np.array([*range(draft_vocabulary), *_special(tokenizer, int(draft_vocabulary), vocab_size)], np.int32)
    expected = "a number of tokens or a list of their ids"
    ids = np.asarray(validate.numbers("draft_vocabulary", draft_vocabulary, expected, whole=True))
    if ids.ndim != 1:
        raise TypeError(f"draft_vocabulary must be {expected}, got shape {ids.shape}")
    ids = np.sort(ids)
    if not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size:
        span = f"{ids[0]} to {ids[-1]}" if len(ids) else "none"
        raise ValueError(f"draft_vocabulary must be ids of a vocabulary of {vocab_size} tokens, got {span}")
    if len(repeated := ids[1:][ids[1:] == ids[:-1]]):
        raise ValueError(f"draft_vocabulary must have each id once, got {repeated[0]} twice; pass np.unique(ids)")
    return ids.astype(np.int32)


def _special(tokenizer: Tokenizer | None, start: int, vocab_size: int) -> list[int]:
    if tokenizer is None:
        return []
    known = range(start, min(vocab_size, tokenizer.vocab_size))
    return [index for index in known if tokenizer.is_special(index) or index in tokenizer.eos_token_ids]


def places(ids: Int[Array, "n"], vocab_size: int) -> Int[Array, "v"]:
    """Returns the index of each of the target's tokens in the draft vocabulary; -1 if it is not in it."""
    count = jnp.arange(ids.shape[0], dtype=jnp.int32)
    return jnp.full(vocab_size, -1, jnp.int32).at[ids].set(count)


def expand(logits: Float[Array, "*rows n"], ids: Int[Array, "n"], vocab_size: int) -> Float[Array, "*rows v"]:
    """Scatters logits into the target's vocabulary, with -inf for tokens outside the draft vocabulary."""
    if ids.shape[0] == vocab_size:
        return logits
    blank = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    # Gathered once, as a device's shard of one vocabulary maps to all shards of the other.
    return blank.at[..., ids].set(unsharded(logits), unique_indices=True, indices_are_sorted=True)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Describes which of the target's tokens a draft can guess; its logits are over these until they are expanded.

    Attributes:
      size: the size of the target's vocabulary.
      ids: the target's ids of the draft's tokens, increasing; `None` means all of them.
      layout: shards expanded logits over devices.
    """

    size: int
    ids: Int[Array, "n"] | None = None
    layout: Layout = Unsharded()  # noqa: RUF009 (frozen and stateless)

    @property
    def count(self) -> int:
        """The number of tokens that the draft can guess."""
        return self.size if self.ids is None else self.ids.shape[0]

    def expand(self, logits: Float[Array, "*rows n"]) -> Float[Array, "*rows v"]:
        """Scatters logits into the target's vocabulary, with -inf for tokens outside the draft vocabulary."""
        return logits if self.ids is None else self.layout.logits(expand(logits, self.ids, self.size))

    def deferred(self, log_probs: Float[Array, "b k n"], count: Int[Array, ""]) -> Deferred | Float[Array, "b k v"]:
        """Returns the log-probabilities that the first `count` drafts were drawn from, to be expanded when needed."""
        return log_probs if self.count == self.size else Expanded(log_probs, count, self.ids, self.size, self.layout)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Converts indices in the draft vocabulary to the target's token ids."""
        return places if self.ids is None else self.ids[places]

    def process(
        self, context: Context, logits: Float[Array, "b t n"], path: Callable[[], Int[Array, "b t d"]]
    ) -> Float[Array, "b t n"]:
        """Applies the target's logits processors to logits over the draft vocabulary.

        Args:
          context: the text, and the policy.
          logits: the draft's logits.
          path: returns the drafts above each position; called only if there are processors.
        """
        if not context.processors:
            return logits
        return process_part(context, logits, path(), self.expand, None if self.count == self.size else self.ids)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Expanded(Deferred):
    """Holds log-probabilities over a draft vocabulary, to be expanded to the target's.

    Attributes:
      log_probs: those of each draft, over the draft vocabulary.
      count: the number of drafts that were drawn; the others get a uniform distribution, so that rows stay normalized.
      ids: the target's ids of the draft's tokens, increasing.
      size: the size of the target's vocabulary.
      layout: shards expanded log-probabilities over devices.
    """

    log_probs: Float[Array, "b k n"]
    count: Int[Array, ""]
    ids: Int[Array, "n"] | None
    size: int = dataclasses.field(metadata={"static": True})
    layout: Layout = dataclasses.field(metadata={"static": True})

    def first(self, count: int) -> Self:
        return dataclasses.replace(self, log_probs=self.log_probs[:, :count])

    def dense(self, tokens: Int[Array, "b k"]) -> Float[Array, "b k v"]:
        drawn = jnp.arange(self.log_probs.shape[1], dtype=jnp.int32)[None, :, None] < self.count
        expanded = Vocabulary(self.size, self.ids, self.layout).expand(self.log_probs)
        return jnp.where(drawn, expanded, -math.log(self.size))
