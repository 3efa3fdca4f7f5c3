"""Defines the results of calls: stop reasons, statuses, requested reports, scores, and `Generation`."""

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.stats import Stats


class StopReason(enum.IntEnum):
    """Names the reasons why a row stopped.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.StopReason(int(generation.stop_reason[0])).name
        'MAX_NEW_TOKENS'
    """

    RUNNING = 0
    STOP_TOKEN = 1
    MAX_NEW_TOKENS = 2
    ERROR = 3


class Status(enum.IntEnum):
    """Names the errors of a row. A program on an accelerator cannot raise, so it reports a status.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.core.Status(int(generation.status[0])).meaning
        'no error'
    """

    OK = 0
    NOT_FINITE_LOGITS = 1
    TOKEN_OUT_OF_RANGE = 2
    BAD_PROMPT_LENGTH = 3
    BAD_MAX_NEW_TOKENS = 4
    BAD_SAMPLING = 5
    NO_TOKEN_LEFT = 6

    @property
    def meaning(self) -> str:
        """Describes the status, and how to fix it."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.OK: "no error",
    Status.NOT_FINITE_LOGITS: "the target's logits were NaN or infinite; check its weights and dtype",
    Status.TOKEN_OUT_OF_RANGE: "the prompt had a token id outside [0, vocab_size)",
    Status.BAD_PROMPT_LENGTH: "prompt_length was outside [1, width of prompt]",
    Status.BAD_MAX_NEW_TOKENS: "max_new_tokens was negative or did not fit the capacity; pass a larger capacity",
    Status.BAD_SAMPLING: (
        "a sampling parameter was out of range: temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1; or a processor's"
    ),
    Status.NO_TOKEN_LEFT: "the sampling policy left no token, or made NaN of finite logits; check its processors",
}


@dataclasses.dataclass(frozen=True)
class Report:
    """Requests arrays in addition to the tokens. Static: a different request compiles a different program.

    Attributes:
      alternatives: the number of most likely tokens to return for each new token.
      logits: whether to return the target's logits for each new token.
      kept_mass: whether to return the logarithm of the probability that top-k, top-p and min-p keep, for each new
        token. It converts between log-probabilities with and without truncation. For `Sampling` and `Greedy` only.

    Example:
        >>> report = jaxspec.core.Report(alternatives=3)
        >>> result = jaxspec.generate(target, None, prompt, report=report, max_new_tokens=4)
        >>> result.reported.tokens.shape, bool((result.reported.tokens[..., 0] == result.tokens).all())
        ((2, 4, 3), True)
    """

    alternatives: int = 0
    logits: bool = False
    kept_mass: bool = False

    def check(self, vocab_size: int) -> None:
        """Raises `TypeError` or `ValueError` unless the fields are valid for this vocabulary."""
        if isinstance(self.alternatives, bool) or not isinstance(self.alternatives, int | np.integer):
            raise TypeError(f"alternatives must be a static integer, got {validate.shown(self.alternatives)}")
        if not 0 <= self.alternatives <= vocab_size:
            raise ValueError(f"alternatives must be between 0 and {vocab_size}, got {self.alternatives}")
        validate.flag("logits", self.logits)
        validate.flag("kept_mass", self.kept_mass)

    def empty(self, batch: int, slots: int, vocab_size: int) -> "Reported | None":
        """Returns empty buffers; `None` if nothing is requested."""
        if self == Report():
            return None
        blank = lambda *width, dtype=jnp.float32: jnp.zeros((batch, slots, *width), dtype)  # noqa: E731
        logits = blank(vocab_size) if self.logits else None
        kept = blank() if self.kept_mass else None
        if not (most := self.alternatives):
            return Reported(None, None, None, logits, kept)
        return Reported(blank(most, dtype=jnp.int32), blank(most), blank(most), logits, kept)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Reported:
    """Holds the arrays that a `Report` requested for each new token, padded with zeros; `None` if not requested.

    Attributes:
      tokens: the target's most likely tokens in descending order, before processors and warping, int32.
      log_probs: the target's log-probability of each.
      warped_log_probs: its log-probability under the sampling policy's distribution; -inf if excluded.
      logits: the target's logits, before processors.
      log_kept_mass: the log of the probability that the policy keeps, `log S`: `warped_log_probs` plus this is the
        log-probability after processors and temperature, before top-k, top-p and min-p. 0 if nothing is excluded.

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
    log_kept_mass: Float[Array, "b s"] | None = None


def top(
    logits: Float[Array, "b n v"],
    normalizer: Float[Array, "b n"],
    warped: Float[Array, "b n v"],
    report: Report,
    log_kept_mass: Float[Array, "b n"] | None = None,
) -> Reported:
    """Computes the requested arrays at the positions that tokens were drawn from.

    Args:
      logits: the target's logits.
      normalizer: their log-sum-exp.
      warped: the log-probabilities of the policy's distribution.
      report: the request.
      log_kept_mass: the log of the probability that the policy keeps, if that is requested.
    """
    returned = logits.astype(jnp.float32) if report.logits else None
    if not report.alternatives:
        return Reported(None, None, None, returned, log_kept_mass)
    values, tokens = jax.lax.top_k(logits.astype(jnp.float32), report.alternatives)
    tokens = tokens.astype(jnp.int32)
    after = jnp.take_along_axis(warped.astype(jnp.float32), tokens, axis=2)
    return Reported(tokens, values - normalizer[..., None].astype(jnp.float32), after, returned, log_kept_mass)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """Holds the log-probability of each token of a text, given the tokens before it.

    Attributes:
      log_probs: under the model, before warping. 0 for a row's first token and beyond its length.
      warped_log_probs: under the sampling policy's distribution; -inf for excluded tokens.

    Example:
        >>> scores = jaxspec.score(target, prompt)
        >>> scores.log_probs.shape, scores.log_probs[:, 0].tolist()
        ((2, 5), [0.0, 0.0])
    """

    log_probs: Float[Array, "b t"]
    warped_log_probs: Float[Array, "b t"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Generation:
    """Holds the result of `generate`. Row `b` is `tokens[b, :length[b]]`, padded with zeros.

    Attributes:
      tokens: the new tokens, without the prompt; includes a stop token.
      length: the number of new tokens.
      log_probs: the target's log-probability of each, before warping.
      warped_log_probs: its log-probability under the sampling policy's distribution.
      from_draft: whether each is an accepted draft; any other is the target's, and ends its round.
      stop_reason: the `StopReason` of each row.
      status: the `Status` of each row.
      stats: counts of rounds, drafted and accepted tokens, per row.
      reported: alternatives and logits, if requested by a `jaxspec.core.Report`; else `None`.
      lossless: whether the verifier keeps the target's distribution exactly.

    Example:
        >>> generation = jaxspec.generate(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4)
        >>> generation.raise_for_status()
        >>> generation.tokens.shape, generation.length.tolist()
        ((2, 4), [4, 4])
        >>> generation.stats.acceptance_rate <= 1
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
        """Sums the log-probabilities of each row's new tokens, under the sampling policy if `warped`."""
        return jnp.sum(self.warped_log_probs if warped else self.log_probs, axis=-1)

    @property
    def measured_total_variation(self) -> float:
        """The mean total variation between a lossy verifier's output and the target, over new tokens.

        The verifier's class documents its measure. 0 for a lossless verifier, and before the first token.
        """
        return self.stats.measured_total_variation

    def raise_for_status(self) -> None:
        """Raises on the host if a row failed.

        Raises:
          FloatingPointError: a row's logits were not finite, or its sampling policy left no token.
          ValueError: a traced argument was out of range.
        """
        for error in self.errors():
            if error is not None:
                raise error

    def errors(self) -> tuple[Exception | None, ...]:
        """Returns, on the host, the exception of each row, as in `raise_for_status`; `None` if there is none."""
        found: list[Exception | None] = []
        for row, value in enumerate(jax.device_get(self.status).tolist()):
            status = Status(value)
            floating = status in (Status.NOT_FINITE_LOGITS, Status.NO_TOKEN_LEFT)
            error = (FloatingPointError if floating else ValueError)(
                f"row {row} stopped with {status.name}: {status.meaning}"
            )
            found.append(None if status is Status.OK else error)
        return tuple(found)
