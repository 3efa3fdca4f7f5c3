"""Looks drafts up in the prompt: what followed the last time the text ended like this."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.lookup import Guess, LookupDrafter

# Each token that is looked for is a part of the program of its own.
_LONGEST = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NGramDrafter(LookupDrafter):
    """Copies what followed the longest, then latest, earlier occurrence of the text's end.

    Searches the row's own tokens on the device. A match that runs into the end of the text is continued periodically. A
    row without a match drafts nothing, and a round without any costs what plain decoding costs.

    Attributes:
      k: drafted tokens a round. Give an `Adaptive` in its place to draft as many as pay.
      max_ngram: the longest end that is looked for, at most 256.
      min_ngram: the shortest; raise it for fewer and better guesses.

    References:
      Prompt lookup decoding: Saxena (2023).

    Example:
      >>> result = jaxspec.generate(target, jaxspec.NGramDrafter(k=3), prompt, max_new_tokens=8)
      >>> result.tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "ngram"
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    max_ngram: int = dataclasses.field(default=4, metadata={"static": True})
    min_ngram: int = dataclasses.field(default=2, metadata={"static": True})

    def __post_init__(self) -> None:
        validate.reads_no_log_probs("NGramDrafter", self.draft_length)
        for name in ("min_ngram", "max_ngram"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {number!r}; it fixes the program")
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
        return Guess(_continuation(tokens, length, end, k), count, right[:, None] ** numbers)


def find_latest_match(
    tokens: Int[Array, "b s"], length: Int[Array, "b"], max_ngram: int
) -> tuple[Int[Array, "b"], Int[Array, "b"]]:
    """Finds where the end of each row's text occurred before: the longest match, of equal ones the latest.

    Returns:
      How many tokens match (0 to `max_ngram`), and the position of the last of them.
    """
    slots = tokens.shape[1]
    positions = jnp.arange(slots, dtype=jnp.int32)[None]
    matched = jnp.zeros(tokens.shape, jnp.int32)
    still: Bool[Array, "b s"] = positions < length[:, None] - 1
    for back in range(max_ngram):
        at = jnp.maximum(length - 1 - back, 0)[:, None]
        suffix = jnp.take_along_axis(tokens, at, axis=1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)), constant_values=-1)[:, :slots]
        still = still & (shifted == suffix)
        matched = matched + still.astype(jnp.int32)
    best = jnp.argmax(jnp.where(matched > 0, matched * slots + positions, 0), axis=1).astype(jnp.int32)
    return jnp.take_along_axis(matched, best[:, None], axis=1)[:, 0], best


def _continuation(
    tokens: Int[Array, "b s"], length: Int[Array, "b"], end: Int[Array, "b"], k: int
) -> Int[Array, "b k"]:
    """Returns the `k` tokens after position `end`, repeating with the match's period past the text."""
    period = jnp.maximum(length - 1 - end, 1)
    offsets = jnp.arange(k, dtype=jnp.int32)[None] % period[:, None]
    return jnp.take_along_axis(tokens, end[:, None] + 1 + offsets, axis=1)
