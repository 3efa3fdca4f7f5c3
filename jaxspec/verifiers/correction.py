"""Draws the token after the accepted drafts: from what is left of the target, or from the target itself."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.argmax import argmax, leaders
from jaxspec.core.parts import exchange, find, in_part, parts_of
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict


def left_or_target(
    rejected: Bool[Array, "b"], left: Float[Array, "b v"], target: Float[Array, "b v"]
) -> Float[Array, "b v"]:
    """Returns `left` where a draft was rejected and there is some, else the target's distribution.

    Args:
      rejected: the rows whose next draft was rejected.
      left: log-probabilities, up to a constant, of what the rejected draft leaves.
      target: the target's own.
    """
    some = rejected & (jnp.max(left, axis=-1) > -jnp.inf)
    return jnp.where(some[:, None], left, target)


def draw_next(
    proposal: Proposal,
    accepted: Int[Array, "b"],
    noise: Float[Array, "b v"],
    rejected: Bool[Array, "b"],
    left: Float[Array, "b v"],
    target: Float[Array, "b v"],
) -> Verdict:
    """Returns the verdict with the token that the noise draws from `left_or_target`."""
    if parts_of(target) == 1:
        return Verdict(accepted, argmax(left_or_target(rejected, left, target) + noise))
    # Whether anything is left is known only when all devices have told theirs: each draws from both.
    scores, tokens = leaders(jnp.stack([left, target], axis=1) + noise[:, None])
    known = proposal.at_drafts
    looked_up = () if known is None else (take_row(known.logits, accepted), target)
    scores, tokens, *values = exchange(scores, tokens, *(find(one[:, None], tokens) for one in looked_up))
    some = rejected & (jnp.max(scores[:, 0], axis=-1) > -jnp.inf)
    source = jnp.where(some, 0, 1)
    part = jnp.argmax(take_row(scores, source), axis=-1)
    token, *at_next = (in_part(take_row(one, source), part) for one in (tokens, *values))
    return Verdict(accepted, token, at_next=(at_next[0], at_next[1]) if at_next else None)
