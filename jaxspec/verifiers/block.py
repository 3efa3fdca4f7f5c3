"""Accepts the drafts of a round together: block verification."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.correction import draw_next, residual_or_target
from jaxspec.verifiers.rejection import TokenVerifier, draft_at, log_residual, target_at
from jaxspec.verifiers.tree_walk import draft_log_probs


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockVerifier(Verifier):
    """Accepts the longest prefix whose joint probability the target allows, beyond the first token that fails.

    The first `i` drafts together are accepted with probability `P_i = min(1, P_{i-1} target / draft)`,
    so a draft that the target likes less is made good by later ones that it likes more. Lossless
    for any draft distribution; never fewer accepted drafts in expectation than `TokenVerifier`, at the same
    cost for the models. Deterministic drafts gain nothing and follow the token rule. The default for drawn chains.

    Example:
        >>> drafter, policy = jaxspec.ModelDrafter(draft, k=3), jaxspec.Sampling(temperature=0.8)
        >>> options = dict(key=key, sampling=policy, verifier=jaxspec.BlockVerifier(), max_new_tokens=8)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 8)

    References:
      Sun et al. (2024), arXiv:2403.10444, algorithm 2.
    """

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.log_probs is None:
            return TokenVerifier().verify(rng, proposal, target_log_probs)
        n = proposal.tokens.shape[1]
        # Strict: a uniform is never 0, so a prefix the target excludes is never accepted.
        passed = proposal.valid & (jnp.log(rng.uniforms(n)) < log_thresholds(proposal, target_log_probs))
        numbers = jnp.arange(1, n + 1, dtype=jnp.int32)[None]
        # The longest prefix, even if a shorter one failed its test: this is what differs from the token rule.
        accepted = jnp.max(jnp.where(passed, numbers, 0), axis=1, initial=0)
        noise = rng.next_noise(target_log_probs.shape[-1])
        return draw_next(proposal, accepted, noise, *_after(proposal, target_log_probs, accepted))


def log_prefix_ratio(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n_plus_1"]:
    """Computes `log P_i`, the log-probability with which at least the first `i` drafts are accepted; `P_0` is 1."""
    target = target_at(proposal, target_log_probs)
    draft = draft_at(proposal, draft_log_probs(proposal))
    ratio = [jnp.zeros(target.shape[:1], target.dtype)]
    for step in jnp.unstack(target - draft, axis=1):
        joint = jnp.minimum(ratio[-1] + step, 0.0)
        # NaN: the target or the drafter excludes the draft. It is never accepted.
        ratio.append(jnp.where(jnp.isnan(joint), -jnp.inf, joint))
    return jnp.stack(ratio, axis=1)


def log_thresholds(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """Computes the threshold of each draft's log-uniform; the last one below its threshold ends the prefix.

    `P_i` at the last draft that a row submits. Before it `R / (R + 1 - P_i)`, where `R` is the
    mass of `max(P_i target - draft, 0)` after draft `i`. Meaningless at drafts not submitted.
    """
    n = proposal.tokens.shape[1]
    ratio = log_prefix_ratio(proposal, target_log_probs)[:, 1:]
    scaled = ratio[:, :-1, None] + target_log_probs[:, 1:-1]
    draft = draft_log_probs(proposal)[:, 1:]
    mass = jnp.sum(jnp.where(scaled <= draft, 0.0, jnp.exp(scaled) - jnp.exp(draft)), axis=-1)
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
    """Computes the log-probabilities, up to a constant, of the token that follows `accepted` drafts.

    The target's distribution where every submitted draft was accepted, else `max(P_i target - draft, 0)`
    after the `i` that were. An empty residual (equal up to rounding) falls back to the target.
    """
    return residual_or_target(*_after(proposal, target_log_probs, accepted))


def _after(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> tuple[Bool[Array, "b"], Float[Array, "b v"], Float[Array, "b v"]]:
    """Returns which rows have rejected a draft, the residual there, and the target's log-probabilities."""
    target = take_row(target_log_probs, accepted)
    n = proposal.tokens.shape[1]
    if n == 0:
        return jnp.zeros(accepted.shape, jnp.bool_), target, target
    ratio = take_row(log_prefix_ratio(proposal, target_log_probs), accepted)
    draft = take_row(draft_log_probs(proposal), jnp.minimum(accepted, n - 1))
    residual = log_residual(target + ratio[:, None], draft)
    return accepted < jnp.sum(proposal.valid, axis=1, dtype=jnp.int32), residual, target
