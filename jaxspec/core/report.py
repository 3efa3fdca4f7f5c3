"""Defines what `generate` returns beside tokens, if it is asked to: alternatives of each token, and logits."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass


@dataclasses.dataclass(frozen=True)
class Report:
    """Asks for arrays beside the tokens. Static: another request is another program.

    Attributes:
      alternatives: the number of most likely tokens in the place of each new one.
      logits: whether to return the target's logits that each was drawn from.

    Example:
        >>> report = jaxspec.core.Report(alternatives=3)
        >>> result = jaxspec.generate(target, None, prompt, report=report, max_new_tokens=4)
        >>> result.reported.tokens.shape, bool((result.reported.tokens[..., 0] == result.tokens).all())
        ((2, 4, 3), True)
    """

    alternatives: int = 0
    logits: bool = False

    def check(self, vocab_size: int) -> None:
        """Raises `TypeError` or `ValueError` unless there are so many tokens."""
        if isinstance(self.alternatives, bool) or not isinstance(self.alternatives, int):
            raise TypeError(f"alternatives must be a static integer, got {self.alternatives!r}")
        if not 0 <= self.alternatives <= vocab_size:
            raise ValueError(f"alternatives must be between 0 and {vocab_size}, got {self.alternatives}")
        if not isinstance(self.logits, bool):
            raise TypeError(f"logits must be True or False, got {self.logits!r}")

    def empty(self, batch: int, slots: int, vocab_size: int) -> "Reported | None":
        """Returns the buffers; `None` where nothing is asked for."""
        if self == Report():
            return None
        blank = lambda width, dtype=jnp.float32: jnp.zeros((batch, slots, width), dtype)  # noqa: E731
        logits = blank(vocab_size) if self.logits else None
        if not self.alternatives:
            return Reported(None, None, None, logits)
        return Reported(blank(self.alternatives, jnp.int32), blank(self.alternatives), blank(self.alternatives), logits)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Reported:
    """Holds what a `Report` asked for, for each new token; zeros follow. What was not asked for is `None`.

    Attributes:
      tokens: the most likely of the target, the most likely first; before processors and warping.
      log_probs: the target's log-probability of each.
      warped_log_probs: its log-probability under the sampling policy's distribution; -inf if that leaves it out.
      logits: the target's, before processors.

    Example:
        >>> report = jaxspec.core.Report(logits=True)
        >>> result = jaxspec.generate(target, None, prompt, report=report, max_new_tokens=4)
        >>> result.reported.logits.shape
        (2, 4, 310)
    """

    tokens: Int[Array, "b s n"] | None
    log_probs: Float[Array, "b s n"] | None
    warped_log_probs: Float[Array, "b s n"] | None
    logits: Float[Array, "b s v"] | None


def top(
    logits: Float[Array, "b n v"],
    normalizer: Float[Array, "b n"],
    warped: Float[Array, "b n v"],
    report: Report,
) -> Reported:
    """Returns what is asked for of the positions that tokens were drawn from.

    Args:
      logits: the target's.
      normalizer: the logarithms of their sums of exponentials.
      warped: the log-probabilities of the policy's distribution.
      report: what is asked for.
    """
    returned = logits.astype(jnp.float32) if report.logits else None
    if not report.alternatives:
        return Reported(None, None, None, returned)
    values, tokens = jax.lax.top_k(logits.astype(jnp.float32), report.alternatives)
    tokens = tokens.astype(jnp.int32)
    after = jnp.take_along_axis(warped.astype(jnp.float32), tokens, axis=2)
    return Reported(tokens, values - normalizer[..., None].astype(jnp.float32), after, returned)
