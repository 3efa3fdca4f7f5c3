"""Block verification: the drafts of a round are accepted together."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.rejection import TokenVerifier, log_residual


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockVerifier(Verifier):
    """Keeps the longest prefix whose joint probability the target allows, not the first failure.

    The first `i` drafts together are kept with probability `P_i = min(1, P_{i-1} target / draft)`,
    so a draft that the target likes less is made good by later ones that it likes more. Lossless
    for any draft distribution; never fewer accepted drafts in expectation than `TokenVerifier`, at the same
    cost for the models. Deterministic drafts gain nothing and follow the token rule. Sun et al.
    2403.10444, algorithm 2.
    """

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs) -> Verdict:
        if proposal.log_probs is None:
            return TokenVerifier().verify(rng, proposal, target_log_probs)
        n = proposal.tokens.shape[1]
        # Strict: a uniform is never 0, so a prefix the target excludes is never accepted.
        kept = proposal.valid & (jnp.log(rng.uniforms(n)) < log_thresholds(proposal, target_log_probs))
        numbers = jnp.arange(1, n + 1, dtype=jnp.int32)[None]
        # The longest, whatever became of those before: this is where it is not the token rule.
        accepted = jnp.max(jnp.where(kept, numbers, 0), axis=1, initial=0)
        log_probs = next_log_probs(proposal, target_log_probs, accepted)
        next_token = argmax(log_probs + rng.next_noise(log_probs.shape[-1]))
        return Verdict(accepted, next_token)


def log_prefix_ratio(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n_plus_1"]:
    """`log P_i`, the log-probability with which at least the first `i` drafts are kept; `P_0` is 1."""
    at = proposal.tokens[..., None]
    target = jnp.take_along_axis(target_log_probs[:, :-1], at, axis=-1)[..., 0]
    draft = jnp.take_along_axis(proposal.log_probs, at, axis=-1)[..., 0]
    ratio = [jnp.zeros(target.shape[:1], target.dtype)]
    for step in jnp.unstack(target - draft, axis=1):
        joint = jnp.minimum(ratio[-1] + step, 0.0)
        # No number: the target or the drafter excludes the draft. It is never kept.
        ratio.append(jnp.where(jnp.isnan(joint), -jnp.inf, joint))
    return jnp.stack(ratio, axis=1)


def log_thresholds(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """What the log of uniform `i` is compared with; the last one below it ends the prefix.

    `P_i` at the last draft that a row submits. Before it `R / (R + 1 - P_i)`, where `R` is the
    mass of `max(P_i target - draft, 0)` after draft `i`. Meaningless at drafts not submitted.
    """
    n = proposal.tokens.shape[1]
    ratio = log_prefix_ratio(proposal, target_log_probs)[:, 1:]
    wanted = ratio[:, :-1, None] + target_log_probs[:, 1:-1]
    draft = proposal.log_probs[:, 1:]
    mass = jnp.sum(jnp.where(wanted <= draft, 0.0, jnp.exp(wanted) - jnp.exp(draft)), axis=-1)
    mass = jnp.pad(mass, ((0, 0), (0, n - mass.shape[1])))
    total = mass - jnp.expm1(ratio)
    between = jnp.where(total > 0, jnp.log(mass) - jnp.log(total), 0.0)
    # Where the next distribution is NaN, the target's or the drafter's, the block ends before it.
    between = jnp.where(jnp.isnan(mass), ratio, between)
    submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)[:, None]
    return jnp.where(jnp.arange(1, n + 1, dtype=jnp.int32)[None] == submitted, ratio, between)


def next_log_probs(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b v"]:
    """The log-probabilities, up to a constant, of the token that follows `accepted` drafts.

    The target's distribution where every submitted draft was accepted, else `max(P_i target - draft, 0)`
    after the `i` that were. An empty residual (equal up to rounding) falls back to the target.
    """
    target = take_row(target_log_probs, accepted)
    n = proposal.tokens.shape[1]
    if n == 0:
        return target
    ratio = take_row(log_prefix_ratio(proposal, target_log_probs), accepted)
    residual = log_residual(target + ratio[:, None], take_row(proposal.log_probs, jnp.minimum(accepted, n - 1)))
    submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
    cut = (accepted < submitted) & (jnp.max(residual, axis=-1) > -jnp.inf)
    return jnp.where(cut[:, None], residual, target)
