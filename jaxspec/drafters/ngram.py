"""Looks drafts up in the text so far: what followed the last time that it ended like this."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.lookup import Guess, LookupDrafter

# Each token of the n-gram is unrolled into the compiled program.
_LONGEST = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NGramDrafter(LookupDrafter):
    """Copies the tokens after the longest, then latest, earlier occurrence of the text's end.

    Searches the row's own tokens on the device. A match that reaches the end of the text is continued periodically. A
    row without a match drafts nothing, and a round without drafts costs no more than plain decoding.

    Attributes:
      k: the number of drafts a round. Pass an `Adaptive` to choose it round by round.
      max_ngram: the longest n-gram to match, at most 256 tokens.
      min_ngram: the shortest n-gram to match; a larger one makes fewer but better guesses.

    References:
      Prompt lookup decoding: Saxena (2023).

    Example:
      >>> result = jaxspec.generate(target, jaxspec.NGramDrafter(k=3), prompt, max_new_tokens=8)
      >>> result.tokens.shape
      (2, 8)
    """

    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    max_ngram: int = dataclasses.field(default=4, metadata={"static": True})
    min_ngram: int = dataclasses.field(default=2, metadata={"static": True})

    def __post_init__(self) -> None:
        validate.reads_no_log_probs("NGramDrafter", self.draft_length)
        for name in ("min_ngram", "max_ngram"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {validate.shown(number)}; it is static")
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(
                "NGramDrafter needs 1 <= min_ngram <= max_ngram, "
                f"got min_ngram={self.min_ngram} and max_ngram={self.max_ngram}"
            )
        if self.max_ngram > _LONGEST:
            raise ValueError(
                f"max_ngram must be at most {_LONGEST}, got {self.max_ngram}, whose comparisons alone take "
                f"{4 * int(self.max_ngram):,} bytes for each token of a text; pass fewer, such as max_ngram=8"
            )

    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        k = self.max_drafts
        matched, end = find_latest_match(tokens, length, min(self.max_ngram, tokens.shape[1]))
        count = jnp.where(matched >= self.min_ngram, jnp.int32(k), 0)
        # Laplace's rule of succession: copying has been right `matched` times in a row.
        right = (matched + 1).astype(jnp.float32) / (matched + 2).astype(jnp.float32)
        numbers = jnp.arange(1, k + 1, dtype=jnp.float32)[None]
        # Past the end of the text, the continuation repeats with the match's period.
        period = jnp.maximum(length - 1 - end, 1)
        offsets = jnp.arange(k, dtype=jnp.int32)[None] % period[:, None]
        following = jnp.take_along_axis(tokens, end[:, None] + 1 + offsets, axis=1)
        return Guess(following, count, right[:, None] ** numbers)


def find_latest_match(
    tokens: Int[Array, "b s"], length: Int[Array, "b"], max_ngram: int
) -> tuple[Int[Array, "b"], Int[Array, "b"]]:
    """Finds the longest earlier occurrence of the end of each row's text; ties go to the latest.

    Returns:
      The number of matching tokens (0 to `max_ngram`), and the position of the last of them.
    """
    slots = tokens.shape[1]
    positions = jnp.arange(slots, dtype=jnp.int32)[None]
    matched = jnp.zeros(tokens.shape, jnp.int32)
    still: Bool[Array, "b s"] = positions < length[:, None] - 1
    for back in range(max_ngram):
        at = jnp.maximum(length - 1 - back, 0)[:, None]
        ending = jnp.take_along_axis(tokens, at, axis=1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)), constant_values=-1)[:, :slots]
        still = still & (shifted == ending)
        matched = matched + still.astype(jnp.int32)
    best = jnp.argmax(jnp.where(matched > 0, matched * slots + positions, 0), axis=1).astype(jnp.int32)
    return jnp.take_along_axis(matched, best[:, None], axis=1)[:, 0], best
