"""What a schedule is: how many tokens a drafter drafts, decided before they can be seen.

Whether a draft is submitted may depend on all that was known before it was drawn, and never on
the draft itself: with a target distribution (.7, .3) and a draft distribution (.5, .5), dropping the less certain
token after looking at it emits (.85, .15). DSpark, appendix A, calls this the non-anticipating
rule. Here the order of the calls keeps it, and what they are given:

    limit(state, able)           before the round, from earlier rounds
    trusts(state, survival)      before draft i is drawn, from what the drafter itself expects of it
    submits(state, distribution)          before draft i is drawn, from the distribution that it is drawn from
                                 ... draft i is drawn, and stays submitted ...
    goes_on(state, log_prob)     for the drafts after it
    observe(state, ...)          for the rounds after it; rest(state, ...) of rows that drafted by another schedule
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass


class DraftLength(abc.ABC):
    """Decides, row by row, how many tokens are drafted. A frozen pytree; what changes is its state.

    Attributes:
      lengths: numbers of drafts that verification is compiled for, static and rising; the last
        is the most that are drafted in a round.
      reads_law: whether `should_draft` or `continue_` look at the draft's distribution, which a deterministic
        drafter does not have.
      reads_confidence: whether `should_verify` looks at what it is given, which only a drafter with a
        confidence head can give.
    """

    lengths: tuple[int, ...]
    reads_log_probs: ClassVar[bool] = False
    reads_confidence: ClassVar[bool] = False

    def check(self) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` for values that only a whole schedule can be asked for."""

    def init(self, batch: int) -> Any:
        """The state before the first round. By default it is the limit itself."""
        return jnp.full(batch, self.lengths[-1], jnp.int32)

    def longest(self, state: Any, able: Bool[Array, "b"]) -> Int[Array, "b"]:
        """The most drafts of this round; 0 does not run the drafter.

        Args:
          state: that of before the round.
          able: which rows can draft at all; what is returned for others is not read.
        """
        del able
        return state

    def should_verify(self, state: Any, cum_accept_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Whether a draft is worth its verification.

        Args:
          state: that of before the round.
          survival: the probability that the drafter gives it and all drafts before it to be
            accepted, estimated before it is drawn.
        """
        del state
        return jnp.ones(cum_accept_prob.shape, jnp.bool_)

    def should_draft(self, state: Any, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        """Whether to draw and submit one more draft.

        Args:
          state: that of before the round.
          distribution: the log-probabilities that it would be drawn from; where those are one-hot, as at
            temperature 0, the draft model's own.
        """
        del state
        return jnp.ones(log_probs.shape[:1], jnp.bool_)

    def continue_(self, state: Any, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Whether there may be drafts after the one just drawn, which had this probability."""
        del state
        return jnp.ones(log_prob.shape, jnp.bool_)

    def observe(self, state: Any, submitted: Int[Array, "b"], accepted: Int[Array, "b"], live: Bool[Array, "b"]) -> Any:
        """Takes in a round's outcome. Rows that are not `live` have ended, or rest."""
        del submitted, accepted, live
        return state

    def rest(self, state: Any, submitted: Int[Array, "b"], accepted: Int[Array, "b"], resting: Bool[Array, "b"]) -> Any:
        """Takes in a round in which something else drafted for rows `resting`; they have nothing to teach."""
        del submitted, accepted, resting
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed(DraftLength):
    """Always `k` drafts: what a drafter's `k=4` stands for."""

    k: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        validate.draft_length(self.k)

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.k,)


def split(k: Any, schedule: Any, *, has_confidence: bool = False) -> tuple[int, DraftLength]:
    """A drafter's `k`, given as an integer or as a schedule, as both.

    A pytree that is put together again has both already. Raises for a `k` that is neither, and
    for a schedule that reads a confidence which the drafter has not.
    """
    if isinstance(k, DraftLength):
        if k.reads_confidence and not has_confidence:
            raise ValueError(
                f"{type(k).__name__} stops by a drafter's own confidence, which this one has no head for; pass "
                "ConfidenceStop, EntropyStop, Adaptive or an integer k"
            )
        return k.lengths[-1], k
    if schedule is None:
        return k, Fixed(k)
    return k, schedule
