"""Decides how many tokens are drafted, before they can be seen.

Whether a draft is submitted to verification may depend on all that was known before it was drawn, and never on the
draft itself: with a target distribution (.7, .3) and a draft distribution (.5, .5), dropping the less certain token
after looking at it emits (.85, .15). DSpark, appendix A, calls this the non-anticipating rule. The order of the calls
and their arguments enforce it:

    longest(state, able, live)                before the round, from earlier rounds
    should_verify(state, cum_accept_prob)     before draft i is drawn, from the drafter's own estimate
    should_draft(state, log_probs)            before draft i is drawn, from the distribution that it is drawn from
                                              ... draft i is drawn, and stays submitted ...
    continue_(state, log_prob)                for the drafts after it
    observe(state, ...)                       for the rounds after it
"""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass

# Metadata of the field `k` of drafters: a number is static, a `DraftLength` is a pytree.
NUMBER_IS_STATIC = {"static": (int, np.integer)}


class DraftLength(abc.ABC):
    """Decides, row by row, how many tokens are drafted. A frozen pytree; what changes is its state.

    Pass one as a drafter's `k`. To write your own, give `lengths` and override `longest`; a draft is submitted if all
    of `longest`, `should_verify`, `should_draft` and `continue_` allow it.

    Attributes:
      lengths: numbers of drafts that verification is compiled for, static and rising; the last
        is the most that are drafted in a round.
      reads_log_probs: whether `should_draft` or `continue_` look at the draft's distribution, which a deterministic
        drafter does not have.
      reads_confidence: whether `should_verify` looks at what it is given, which only a drafter with a
        confidence head can give.

    Example:
      >>> drafter = jaxspec.ModelDrafter(draft, k=jaxspec.draft_length.EntropyStop(4))
      >>> isinstance(drafter.k, jaxspec.draft_length.DraftLength), drafter.k.lengths
      (True, (0, 2, 4))
    """

    lengths: tuple[int, ...]
    reads_log_probs: bool = False
    reads_confidence: bool = False

    def check(self) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` for traced values out of range; called outside of `jit`, before the first round."""

    def init(self, batch: int) -> Any:
        """Returns the state before the first round, for `batch` rows. By default it is the longest length itself."""
        return jnp.full(batch, self.lengths[-1], jnp.int32)

    def longest(self, state: Any, able: Bool[Array, "b"], live: Bool[Array, "b"]) -> Int[Array, "b"]:
        """Returns the most drafts of each row in this round; where all are 0 the drafter does not run.

        Args:
          state: the state before the round.
          able: which rows can draft; what is returned for others is not read.
          live: which rows have not ended; those that cannot draft wait for those that do.
        """
        del able, live
        return state

    def longest_certain(
        self, state: Any, able: Bool[Array, "b"], live: Bool[Array, "b"], certain: Int[Array, "b"]
    ) -> Int[Array, "b"]:
        """Returns what `longest` does, where the first `certain` drafts of each row will be accepted for sure.

        By default they make no difference.
        """
        del certain
        return self.longest(state, able, live)

    def should_verify(self, state: Any, cum_accept_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Tells which rows' next draft is worth its verification.

        Args:
          state: the state before the round.
          cum_accept_prob: the probability that the drafter gives the draft and all before it to be
            accepted, estimated before it is drawn.
        """
        del state
        return jnp.ones(cum_accept_prob.shape, jnp.bool_)

    def should_draft(self, state: Any, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        """Tells which rows draw and submit one more draft.

        Args:
          state: the state before the round.
          log_probs: the distribution that it would be drawn from; where that is one-hot, as at
            temperature 0, the draft model's own.
        """
        del state
        return jnp.ones(log_probs.shape[:1], jnp.bool_)

    def continue_(self, state: Any, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Tells which rows may draft on after the draft just drawn, whose log-probability was `log_prob`."""
        del state
        return jnp.ones(log_prob.shape, jnp.bool_)

    def observe(
        self,
        state: Any,
        submitted: Int[Array, "b"],
        accepted: Int[Array, "b"],
        able: Bool[Array, "b"],
        live: Bool[Array, "b"],
    ) -> Any:
        """Returns the state after a round.

        Args:
          state: the state before the round.
          submitted: how many drafts each row submitted.
          accepted: how many were accepted.
          able: which rows to learn from; the others have ended, or something else drafted for them.
          live: which rows had not ended.
        """
        del submitted, accepted, able, live
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed(DraftLength):
    """Drafts `k` tokens in every round: what a drafter's `k=4` stands for.

    Attributes:
      k: how many.

    Example:
      >>> jaxspec.draft_length.Fixed(4).lengths
      (4,)
    """

    k: int = dataclasses.field(metadata={"static": True})
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        validate.draft_length(self.k)
        object.__setattr__(self, "lengths", (self.k,))


def as_draft_length(k: int | DraftLength, *, has_confidence: bool = False) -> DraftLength:
    """Returns a drafter's `k` as a `DraftLength`.

    Args:
      k: a number of drafts, or what decides it.
      has_confidence: whether the drafter estimates how likely its drafts are accepted.

    Raises:
      TypeError, ValueError: `k` is neither, or it reads a confidence that the drafter does not have.

    Example:
      >>> jaxspec.draft_length.as_draft_length(4).lengths
      (4,)
    """
    if not isinstance(k, DraftLength):
        return Fixed(k)
    if k.reads_confidence and not has_confidence:
        raise ValueError(
            f"{type(k).__name__} stops by a drafter's own confidence, which this one has no head for; pass "
            "ConfidenceStop, EntropyStop, Adaptive or an integer k"
        )
    return k
