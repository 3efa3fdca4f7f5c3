"""Decides how many tokens to draft, without looking at them.

Whether a draft is submitted to verification may depend on anything known before it was drawn, but never on the draft
itself: with a target distribution (.7, .3) and a draft distribution (.5, .5), dropping the less certain token after
looking at it emits (.85, .15). DSpark, appendix A, calls this the non-anticipating rule. The order of the calls and
their arguments enforce it:

    longest(state, draftable, active)         before the round, from earlier rounds
    should_verify(state, cum_accept_prob)     before draft i is drawn, from the drafter's own estimate
    should_draft(state, log_probs)            before draft i is drawn, from the distribution that it is drawn from
                                              ... draft i is drawn, and stays submitted ...
    continue_(state, log_prob)                for the drafts after it
    observe(state, ...)                       for the rounds after it
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed

# Metadata of the field `k` of drafters: a number is static, a `DraftLength` is a pytree.
NUMBER_IS_STATIC = {"static": (int, np.integer)}


class DraftLength(abc.ABC):
    """Decides how many tokens each row drafts. A frozen pytree; everything that changes is in its state.

    Pass one as a drafter's `k`. To write your own, define `lengths` and override `longest`. A draft is submitted if all
    of `longest`, `should_verify`, `should_draft` and `continue_` allow it.

    Attributes:
      lengths: the numbers of drafts that verification is compiled for, static and increasing; the last is the largest
        number of drafts a round.
      reads_log_probs: whether `should_draft` or `continue_` read the draft distribution, which a deterministic drafter
        does not have.
      reads_confidence: whether `should_verify` reads its argument, which only a drafter with a confidence head
        provides.

    Example:
      >>> drafter = jaxspec.ModelDrafter(draft, k=jaxspec.draft_length.EntropyStop(4))
      >>> isinstance(drafter.k, jaxspec.draft_length.DraftLength), drafter.k.lengths
      (True, (0, 2, 4))
    """

    lengths: tuple[int, ...]
    reads_log_probs: bool = False
    reads_confidence: bool = False

    def check(self) -> None:  # noqa: B027 (nothing to check is the common case)
        """Raises `ValueError` if traced values are out of range; called outside `jit`, before the first round."""

    def init(self, batch: int) -> Any:
        """Returns the state before the first round, for `batch` rows; by default the longest length, `int32[batch]`."""
        return jnp.full(batch, self.lengths[-1], jnp.int32)

    def longest(self, state: Any, draftable: Bool[Array, "b"], active: Bool[Array, "b"]) -> Int[Array, "b"]:
        """Returns the largest number of drafts of each row in this round; the drafter does not run if all are 0.

        Args:
          state: the state before the round.
          draftable: which rows can draft; the results of other rows are ignored.
          active: which rows have not ended; those that cannot draft wait for those that do.
        """
        del draftable, active
        return state

    def longest_certain(
        self, state: Any, draftable: Bool[Array, "b"], active: Bool[Array, "b"], certain: Int[Array, "b"]
    ) -> Int[Array, "b"]:
        """Returns the result of `longest` if some drafts are sure to be accepted.

        Args:
          state: the state before the round.
          draftable: which rows can draft.
          active: which rows have not ended.
          certain: how many leading drafts of each row are sure to be accepted; ignored by default.
        """
        del certain
        return self.longest(state, draftable, active)

    def should_verify(self, state: Any, cum_accept_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Returns which rows' next draft is worth verifying.

        Args:
          state: the state before the round.
          cum_accept_prob: the drafter's estimate, made before the draft is drawn, of the probability that it and all
            drafts before it are accepted.
        """
        del state
        return jnp.ones(cum_accept_prob.shape, jnp.bool_)

    def should_draft(self, state: Any, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        """Returns which rows draw and submit one more draft.

        Args:
          state: the state before the round.
          log_probs: the distribution to draw the draft from; the draft model's own where that would be one-hot, such as
            at temperature 0.
        """
        del state
        return jnp.ones(log_probs.shape[:1], jnp.bool_)

    def continue_(self, state: Any, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        """Returns which rows may continue after the draft just drawn, whose log-probability was `log_prob`."""
        del state
        return jnp.ones(log_prob.shape, jnp.bool_)

    def observe(
        self,
        state: Any,
        submitted: Int[Array, "b"],
        accepted: Int[Array, "b"],
        draftable: Bool[Array, "b"],
        active: Bool[Array, "b"],
    ) -> Any:
        """Returns the state after a round.

        Args:
          state: the state before the round.
          submitted: the number of drafts that each row submitted.
          accepted: the number of drafts that were accepted.
          draftable: which rows to learn from; the others have ended, or another drafter drafted for them.
          active: which rows had not ended.
        """
        del submitted, accepted, draftable, active
        return state


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed(DraftLength):
    """Drafts `k` tokens in every round; `k=4` of a drafter is short for `Fixed(4)`.

    Attributes:
      k: the number of drafts.

    Example:
      >>> jaxspec.draft_length.Fixed(4).lengths
      (4,)
    """

    k: int = dataclasses.field(metadata={"static": True})
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        validate.draft_length(self.k)
        object.__setattr__(self, "lengths", (self.k,))


@typed("has_confidence")
def as_draft_length(k: int | DraftLength, *, has_confidence: bool = False) -> DraftLength:
    """Converts a drafter's `k` to a `DraftLength`.

    Args:
      k: a number of drafts, or a `DraftLength`.
      has_confidence: whether the drafter estimates the acceptance of its drafts.

    Returns:
      `k` itself, or `Fixed(k)`.

    Raises:
      TypeError, ValueError: `k` is neither, or reads a confidence that the drafter does not have.

    Example:
      >>> jaxspec.draft_length.as_draft_length(4).lengths
      (4,)
    """
    if not isinstance(k, DraftLength):
        return Fixed(k)
    if k.reads_confidence and not has_confidence:
        raise ValueError(
            f"{type(k).__name__} stops by a drafter's own confidence, but this drafter has no confidence head; pass "
            "ConfidenceStop, EntropyStop, Adaptive or an integer k"
        )
    return k


def confidence(logits: Float[Array, "*rows n"], log_probs: Float[Array, "*rows n"] | None) -> Float[Array, "*rows n"]:
    """Returns the distributions that a draft length reads: those that drafts are drawn from.

    One-hot distributions (`None`, or in some rows) do not show how confident the model is, and are replaced by its own.
    """
    own = jax.nn.log_softmax(logits.astype(jnp.float32))
    if log_probs is None:
        return own
    certain = jnp.max(log_probs, axis=-1, keepdims=True) == 0
    return jnp.where(certain, own, log_probs)
