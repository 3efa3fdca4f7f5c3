"""Stops drafting for the rest of a round when further drafts are unlikely to be accepted."""

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
    """Stops drafting after a token whose draft probability is below `threshold`; that token is still submitted.

    The rule reads the drawn token, so it may only decide about later ones: dropping that token itself would change the
    output distribution.

    Attributes:
      k: the largest number of drafts a round; verification is then compiled for 1, 2, 4, 8, ... and `k` of them. A
        tuple lists these numbers explicitly, increasing.
      threshold: in [0, 1], traced; 0 never stops.

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
        # A round drafts at least one token, so it needs no branch without drafts.
        object.__setattr__(self, "lengths", validate.draft_lengths(self.k, smallest=1))

    def check(self) -> None:
        validate.threshold("ConfidenceStop", self.threshold)

    def continue_(self, state: Any, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        return log_prob >= jnp.log(self.threshold)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CumulativeConfidence(DraftLength):
    """Submits drafts while the probability that all of them are accepted is at least `threshold`.

    The probability is the product of the drafter's own estimates, each made before its draft is drawn. For drafters
    with a confidence head, such as a `DFlashDrafter` of a DSpark head.

    Attributes:
      k: the largest number of drafts a round; verification is then compiled for 0, 2, 4, 8, ... and `k` of them. A
        tuple lists these numbers explicitly, increasing.
      threshold: in [0, 1], traced; 0 submits all drafts.

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
    """Holds each row's current threshold, and its running acceptance rate."""

    threshold: Float[Array, "b"]
    acceptance: Float[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EntropyStop(DraftLength):
    """Drafts while the entropy `H` of the draft distribution promises acceptance (AdaEDL).

    A draft is submitted if `1 - sqrt(kappa * H) >= threshold` for it and for all before it. The left side is a lower
    bound of its acceptance probability, known before it is drawn. The threshold follows each row's acceptance rate: it
    goes up a step if too few drafts are accepted, and down a step otherwise.

        acceptance <- decay * acceptance + (1 - decay) * accepted / submitted
        threshold  <- threshold + (1 - smoothing) * (step if acceptance <= goal else -step)

    A round without drafts carries no information about acceptance; it lowers the threshold by a step, so that drafting
    resumes.

    Attributes:
      k: the largest number of drafts a round; verification is then compiled for 0, 2, 4, 8, ... and `k` of them. A
        tuple lists these numbers explicitly, increasing.
      threshold: the initial threshold, in [0, 1], traced.
      kappa: how fast the bound falls with the entropy (in nats); 0.2 in the paper.
      goal: the acceptance rate that the threshold is adjusted for; `step=0` keeps the threshold constant.
      step, decay, smoothing: how the threshold moves; the defaults are those of Draft & Verify.

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

    def longest(
        self, state: EntropyStopState, draftable: Bool[Array, "b"], active: Bool[Array, "b"]
    ) -> Int[Array, "b"]:
        del draftable, active
        return jnp.full(state.threshold.shape, self.lengths[-1], jnp.int32)

    def should_draft(self, state: EntropyStopState, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        entropy = -jnp.sum(jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)
        return 1.0 - jnp.sqrt(self.kappa * jnp.maximum(entropy, 0.0)) >= state.threshold

    def observe(
        self,
        state: EntropyStopState,
        submitted: Int[Array, "b"],
        accepted: Int[Array, "b"],
        draftable: Bool[Array, "b"],
        active: Bool[Array, "b"],
    ) -> EntropyStopState:
        del active
        drafted = submitted > 0
        share = accepted / jnp.maximum(submitted, 1)
        mean = self.decay * state.acceptance + (1.0 - self.decay) * share
        acceptance = jnp.where(draftable & drafted, mean, state.acceptance)
        up = drafted & (acceptance <= self.goal)
        moved = state.threshold + (1.0 - self.smoothing) * jnp.where(up, self.step, -self.step)
        threshold = jnp.where(draftable, jnp.clip(moved, 0.0, 1.0), state.threshold)
        return EntropyStopState(threshold, acceptance)
