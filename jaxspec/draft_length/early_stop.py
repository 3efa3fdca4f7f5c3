"""Stops a round's drafting where further drafts are unlikely to be accepted."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import DraftLength


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ConfidenceStop(DraftLength):
    """Drafts nothing after a token whose draft probability was below `threshold`; that token stays.

    The rule looks at the drawn token, so it may only decide about later ones: dropping the token itself would change
    the distribution of what is emitted.

    Attributes:
      k: the most drafts of a round; verification is then compiled for 1, 2, 4, 8, ... and `k` of them. A tuple names
        those numbers, rising.
      threshold: in [0, 1], traced; 0 always goes on.

    References:
      Assisted generation in Hugging Face Transformers (`assistant_confidence_threshold`).

    Example:
      >>> drafter = jaxspec.ModelDrafter(draft, k=jaxspec.draft_length.ConfidenceStop(4, threshold=0.3))
      >>> drafter.lengths
      (1, 2, 4)
    """

    k: int | tuple[int, ...] = dataclasses.field(default=8, metadata={"static": True})
    threshold: float | Array = 0.4
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)

    reads_log_probs = True

    def __post_init__(self) -> None:
        # A round drafts at least one token, so there is no branch for none.
        object.__setattr__(self, "lengths", validate.draft_lengths(self.k, smallest=1))

    def check(self) -> None:
        validate.threshold("ConfidenceStop", self.threshold)

    def continue_(self, state: Any, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        return log_prob >= jnp.log(self.threshold)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CumulativeConfidence(DraftLength):
    """Submits drafts for as long as the chance that all of them are accepted is at least `threshold`.

    The chance is the product of the drafter's own estimates, one a draft, each made before the draft is drawn.
    For drafters with a confidence head, such as a `DFlashDrafter` of DSpark's heads.

    Attributes:
      k: the most drafts of a round; verification is then compiled for 0, 2, 4, 8, ... and `k` of them. A tuple names
        those numbers, rising.
      threshold: in [0, 1], traced; 0 submits all.

    References:
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.2.

    Example:
      >>> jaxspec.draft_length.CumulativeConfidence(7).lengths
      (0, 2, 4, 7)
    """

    k: int | tuple[int, ...] = dataclasses.field(default=7, metadata={"static": True})
    threshold: float | Array = 0.3
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)

    reads_confidence = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", validate.draft_lengths(self.k))

    def check(self) -> None:
        validate.threshold("CumulativeConfidence", self.threshold)

    def should_verify(self, state: Any, cum_accept_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        return cum_accept_prob >= self.threshold


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EntropyStopState:
    """Holds the threshold that each row has come to, and its running share of accepted drafts."""

    threshold: Float[Array, "b"]
    acceptance: Float[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EntropyStop(DraftLength):
    """Drafts while the entropy `H` of the draft distribution promises that the draft will be accepted (AdaEDL).

    A draft is submitted while `1 - sqrt(kappa * H) >= threshold`, for it and for all before it.
    That is a lower bound of its acceptance, known before it is drawn. The threshold follows each row's
    acceptance rate: a step up where too few drafts are accepted, a step down otherwise.

        acceptance <- decay * acceptance + (1 - decay) * accepted / submitted
        threshold  <- threshold + (1 - smoothing) * (step if acceptance <= goal else -step)

    A round that submitted nothing tells nothing of acceptance; it lowers the threshold by a step,
    so that drafting resumes.

    Attributes:
      k: the most drafts of a round; verification is then compiled for 0, 2, 4, 8, ... and `k` of them. A tuple names
        those numbers, rising.
      threshold: the first, in [0, 1], traced.
      kappa: how fast the estimate falls with the entropy (in nats); the paper's is 0.2.
      goal: the acceptance rate that the threshold is moved for; `step=0` leaves it where it is.
      step, decay, smoothing: how the threshold moves; the defaults are Draft & Verify's.

    References:
      AdaEDL: Agrawal et al. (2024), arXiv:2410.18351.
      Draft & Verify: Zhang et al. (2023), arXiv:2309.08168 (the moving threshold).

    Example:
      >>> jaxspec.draft_length.EntropyStop(8).lengths
      (0, 2, 4, 8)
    """

    k: int | tuple[int, ...] = dataclasses.field(default=8, metadata={"static": True})
    threshold: float | Array = 0.4
    kappa: float = dataclasses.field(default=0.2, metadata={"static": True})
    goal: float = dataclasses.field(default=0.9, metadata={"static": True})
    step: float = dataclasses.field(default=0.01, metadata={"static": True})
    decay: float = dataclasses.field(default=0.5, metadata={"static": True})
    smoothing: float = dataclasses.field(default=0.9, metadata={"static": True})
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)

    reads_log_probs = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", validate.draft_lengths(self.k))
        shares = {name: (getattr(self, name), 0, 1) for name in ("goal", "step", "decay", "smoothing")}
        validate.in_range("EntropyStop", kappa=(self.kappa, 0, math.inf), **shares)

    def check(self) -> None:
        validate.threshold("EntropyStop", self.threshold)

    def init(self, batch: int) -> EntropyStopState:
        fill = lambda value: jnp.full(batch, value, jnp.float32)  # noqa: E731
        return EntropyStopState(fill(self.threshold), fill(self.goal))

    def longest(self, state: EntropyStopState, able: Bool[Array, "b"]) -> Int[Array, "b"]:
        del able
        return jnp.full(state.threshold.shape, self.lengths[-1], jnp.int32)

    def should_draft(self, state: EntropyStopState, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        entropy = -jnp.sum(jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)
        return 1.0 - jnp.sqrt(self.kappa * jnp.maximum(entropy, 0.0)) >= state.threshold

    def observe(
        self, state: EntropyStopState, submitted: Int[Array, "b"], accepted: Int[Array, "b"], live: Bool[Array, "b"]
    ) -> EntropyStopState:
        drafted = submitted > 0
        share = accepted / jnp.maximum(submitted, 1)
        mean = self.decay * state.acceptance + (1.0 - self.decay) * share
        acceptance = jnp.where(live & drafted, mean, state.acceptance)
        up = drafted & (acceptance <= self.goal)
        moved = state.threshold + (1.0 - self.smoothing) * jnp.where(up, self.step, -self.step)
        threshold = jnp.where(live, jnp.clip(moved, 0.0, 1.0), state.threshold)
        return EntropyStopState(threshold, acceptance)
