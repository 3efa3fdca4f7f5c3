"""Records log-probabilities of a prompt's tokens from the passes that feed it.

prompt       a     b      c      d
passes       a ->  b ->   c ->   .         the logits after each token but the last
log_probs    .     b|a    c|ab   d|abc     the first token has none
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.native_sampling import log_sum_exp
from jaxspec.core.prefill import Chunks
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PromptScores:
    """Holds what the target says of each token of one prompt; the first one, and padding, have zeros.

    Attributes:
      log_probs: the log-probability of each token after those before it, float32.
      rank: its place among all tokens, from 1 for the most likely one, int32.
      tokens: the most likely tokens at its position in descending order, int32.
      top_log_probs: the log-probability of each of them, float32.

    Example:
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     handle = engine.submit([5, 3, 7], max_new_tokens=0, prompt_alternatives=2)
        ...     _ = handle.result()
        >>> handle.prompt_scores.tokens.shape
        (1, 32, 2)
    """

    log_probs: Float[Array, "1 s"]
    rank: Int[Array, "1 s"]
    tokens: Int[Array, "1 s n"]
    top_log_probs: Float[Array, "1 s n"]

    @classmethod
    @typed(width=(0, 2**31 - 1), alternatives=(0, 2**20))
    def blank(cls, width: int, alternatives: int) -> Self:
        """Returns the scores of a prompt of up to `width` tokens of which nothing is fed."""
        zeros = lambda dtype, *axes: jnp.zeros((1, width, *axes), dtype)  # noqa: E731
        most = alternatives
        return cls(zeros(jnp.float32), zeros(jnp.int32), zeros(jnp.int32, most), zeros(jnp.float32, most))

    def put(self, text: Chunks, index: Int[Array, ""], logits: Float[Array, "1 t v"]) -> "PromptScores":
        """Adds the tokens after those of a chunk, whose pass returned these logits."""
        places = text.start(index) + 1 + jnp.arange(text.size, dtype=jnp.int32)
        following = jnp.take(text.tokens, places, axis=1, mode="clip")[..., None]
        logits = logits.astype(jnp.float32)
        normalizer = log_sum_exp(logits)[..., None]
        own = jnp.take_along_axis(logits, following, axis=2)
        values, tokens = jax.lax.top_k(logits, self.tokens.shape[2])
        put = lambda buffer, new: buffer.at[:, places].set(new, mode="drop")  # noqa: E731
        return PromptScores(
            put(self.log_probs, (own - normalizer)[..., 0]),
            put(self.rank, 1 + jnp.sum(logits > own, axis=2, dtype=jnp.int32)),
            put(self.tokens, tokens.astype(jnp.int32)),
            put(self.top_log_probs, values - normalizer),
        )
