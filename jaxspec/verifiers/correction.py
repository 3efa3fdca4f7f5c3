"""Draws the token after the accepted drafts: from the residual, or from the target itself."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.argmax import argmax, leaders
from jaxspec.core.parts import exchange, find, in_part, parts_of
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict


def residual_or_target(
    rejected: Bool[Array, "b"], residual: Float[Array, "b v"], target: Float[Array, "b v"]
) -> Float[Array, "b v"]:
    """Returns the residual where a draft was rejected and it is not empty, else the target's distribution.

    Args:
      rejected: the rows whose next draft was rejected.
      residual: log-probabilities, up to a constant.
      target: the target's own.
    """
    some = rejected & (jnp.max(residual, axis=-1) > -jnp.inf)
    return jnp.where(some[:, None], residual, target)


def draw_next(
    proposal: Proposal,
    accepted: Int[Array, "b"],
    noise: Float[Array, "b v"],
    rejected: Bool[Array, "b"],
    residual: Float[Array, "b v"],
    target: Float[Array, "b v"],
) -> Verdict:
    """Returns the verdict with the token that the noise draws from `residual_or_target`."""
    if parts_of(target) == 1:
        return Verdict(accepted, argmax(residual_or_target(rejected, residual, target) + noise))
    # Whether the residual is empty is known only after the exchange: each device takes the best of both.
    scores, tokens = leaders(jnp.stack([residual, target], axis=1) + noise[:, None])
    known = proposal.at_drafts
    looked_up = () if known is None else (take_row(known.logits, accepted), target)
    scores, tokens, *values = exchange(scores, tokens, *(find(one[:, None], tokens) for one in looked_up))
    some = rejected & (jnp.max(scores[:, 0], axis=-1) > -jnp.inf)
    source = jnp.where(some, 0, 1)
    place = source * scores.shape[-1] + jnp.argmax(take_row(scores, source), axis=-1)
    token, *at_next = (in_part(one.reshape(one.shape[0], -1), place) for one in (tokens, *values))
    return Verdict(accepted, token, at_next=(at_next[0], at_next[1]) if at_next else None)
