"""Defines the result of `generate`."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.report import Reported
from jaxspec.core.stats import Stats
from jaxspec.core.status import Status


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Generation:
    """Holds the result of `generate`. Row `b` got `tokens[b, :length[b]]`; zeros follow.

    Attributes:
      tokens: the new tokens alone, a stop token included.
      length: the number of new tokens.
      log_probs: the target's log-probability of each, before warping.
      warped_log_probs: its log-probability under the sampling policy's distribution.
      from_draft: whether each is an accepted draft; any other is the target's own, and ends its round.
      stop_reason: a `StopReason` a row.
      status: a `Status` a row.
      stats: counts of rounds, drafted and accepted tokens, a row each.
      reported: alternatives and logits, where a `jaxspec.core.Report` asked for them; else `None`.
      lossless: whether the verifier keeps the target's distribution exactly.

    Example:
        >>> generation = jaxspec.generate(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4)
        >>> generation.raise_for_status()
        >>> generation.tokens.shape, generation.length.tolist()
        ((2, 4), [4, 4])
        >>> generation.stats.acceptance_rate() <= 1
        True
    """

    tokens: Int[Array, "b n"]
    length: Int[Array, "b"]
    log_probs: Float[Array, "b n"]
    warped_log_probs: Float[Array, "b n"]
    from_draft: Bool[Array, "b n"]
    stop_reason: Int[Array, "b"]
    status: Int[Array, "b"]
    stats: Stats
    reported: Reported | None = None
    lossless: bool = dataclasses.field(default=True, metadata={"static": True})

    def total_log_prob(self, *, warped: bool = False) -> Float[Array, "b"]:
        """Sums the log-probabilities of each row's new tokens; `warped` takes those under the sampling policy."""
        return jnp.sum(self.warped_log_probs if warped else self.log_probs, axis=-1)

    def measured_total_variation(self) -> float:
        """Returns the total variation of a lossy verifier's output from the target's distribution, a mean over tokens.

        The verifier says what it measures; 0 for a lossless one, and before the first token.
        """
        return self.stats.measured_total_variation()

    def raise_for_status(self) -> None:
        """Raises on the host if a row failed.

        Raises:
          FloatingPointError: if a row's logits were not finite, or its sampling policy left no token.
          ValueError: if a traced argument was out of range.
        """
        for error in self.errors():
            if error is not None:
                raise error

    def errors(self) -> tuple[Exception | None, ...]:
        """Returns, on the host, what `raise_for_status` would raise for each row; `None` for a row without a fault."""
        found: list[Exception | None] = []
        for row, value in enumerate(jax.device_get(self.status).tolist()):
            status = Status(value)
            floating = status in (Status.NOT_FINITE_LOGITS, Status.NO_TOKEN_LEFT)
            error = (FloatingPointError if floating else ValueError)(
                f"row {row} stopped with {status.name}: {status.meaning}"
            )
            found.append(None if status is Status.OK else error)
        return tuple(found)
