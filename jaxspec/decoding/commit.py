"""Commits a round: appends the verified tokens to each row, up to a stop token or its budget."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import processing
from jaxspec.core.leading import count_leading
from jaxspec.core.model import Entries
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.results import Reported, Status, StopReason
from jaxspec.core.state import GenerationState, Proposal, RoundInfo, Verdict


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Verified:
    """Holds the results of a verification pass along the accepted path, padded to the longest path.

    `finite` counts the rows of logits before the first that is not finite, and `drawn` the tokens before the first for
    which the policy leaves none to choose.
    """

    verdict: Verdict
    tokens: Int[Array, "b n"]
    log_probs: Float[Array, "b n"]
    warped_log_probs: Float[Array, "b n"]
    finite: Int[Array, "b"]
    drawn: Int[Array, "b"]
    entries: Entries
    hidden: tuple[Array, ...]
    reported: Reported | None = None


def widen(x: Array, to: int) -> Array:
    """Pads the second axis with zeros to the size `to`."""
    return jnp.pad(x, ((0, 0), (0, to - x.shape[1]), *[(0, 0)] * (x.ndim - 2)))


def commit(state: GenerationState, k: int, proposal: Proposal, verified: Verified) -> tuple[GenerationState, RoundInfo]:
    """Appends each row's emitted tokens, up to a stop token or its budget."""
    accepted = verified.verdict.accepted
    # Tokens beyond the budget are cut here instead of being withdrawn from verification, so that the output with a
    # smaller budget is a prefix of that with a larger one.
    room = state.limit - state.length
    sound = jnp.minimum(accepted + 1, jnp.minimum(verified.finite, verified.drawn))
    usable = jnp.minimum(sound, room)
    position = jnp.arange(verified.tokens.shape[1], dtype=jnp.int32)[None]
    stops = jnp.any(verified.tokens[..., None] == state.stop_tokens[:, None], axis=-1)
    stops = stops & (position < usable[:, None])
    before_stop = count_leading(~stops)
    stopped = ~state.done & jnp.any(stops, axis=1)
    count = jnp.where(stopped, before_stop + 1, usable)
    count = jnp.where(state.done, 0, count)
    live = count > 0
    length = state.length + count
    out_of_budget = live & (length >= state.limit)
    failed = ~state.done & ~stopped & (sound <= accepted) & (sound < room)
    reason = jnp.select(
        [failed, stopped, out_of_budget],
        [jnp.int32(StopReason.ERROR), jnp.int32(StopReason.STOP_TOKEN), jnp.int32(StopReason.MAX_NEW_TOKENS)],
        state.stop_reason,
    )
    slots = jnp.where(position < count[:, None], state.length[:, None] + position, state.tokens.shape[1])
    submitted = proposal.longest()
    submitted = jnp.where(stopped | out_of_budget, jnp.minimum(submitted, count), submitted)
    accepted = jnp.minimum(accepted, count)
    context = state.context
    committed = dataclasses.replace(
        state,
        context=dataclasses.replace(
            context,
            tokens=_store(context.tokens, slots, verified.tokens),
            length=length,
            done=context.done | failed | stopped | out_of_budget,
            processed=processing.commit(context.sampling, context.processed, verified.tokens, count),
            cache=context.cache.append(verified.entries).truncate(length - 1),
        ),
        log_probs=_store(state.log_probs, slots, verified.log_probs),
        warped_log_probs=_store(state.warped_log_probs, slots, verified.warped_log_probs),
        reported=None
        if verified.reported is None
        else jax.tree.map(lambda buffer, x: _store(buffer, slots, x), state.reported, verified.reported),
        from_draft=_store(state.from_draft, slots, position < accepted[:, None]),
        stop_reason=reason,
        status=jnp.where(
            failed,
            # If the logits were finite, the policy left no token.
            jnp.where(
                verified.drawn < verified.finite, jnp.int32(Status.NO_TOKEN_LEFT), jnp.int32(Status.NOT_FINITE_LOGITS)
            ),
            state.status,
        ),
        stats=state.stats.count(live, count, submitted, accepted, verified.verdict.deviation),
    )
    none, tokens = jnp.zeros_like(count), widen(verified.tokens, k + 1).astype(jnp.int32)
    info = RoundInfo(tokens, count, jnp.where(live, submitted, none), jnp.where(live, accepted, none))
    return committed, info


def _store(buffer: Array, slots: Int[Array, "b n"], values: Array) -> Array:
    """Writes each row's values at its slots; a slot past the end is dropped."""
    rows = jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None]
    return buffer.at[rows, slots].set(values, mode="drop")
