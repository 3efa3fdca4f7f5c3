"""Accepts drafts jointly: block verification."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.leading import take_row
from jaxspec.core.native_sampling import excess
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.rejection import (
    draft_at,
    draw_next,
    residual_after,
    residual_or_target,
    target_at,
    verify_by_token,
)
from jaxspec.verifiers.tree_walk import draft_log_probs


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockVerifier(Verifier):
    """Accepts the longest prefix whose joint probability the target allows, even past a token that fails alone.

    At least the first `i` drafts are accepted with probability `P_i = min(1, P_{i-1} target / draft)`, so later drafts
    that the target favors make up for an earlier one that it does not. Lossless for any draft distribution. Accepts at
    least as many drafts in expectation as `TokenVerifier`, at the same model cost. Deterministic drafts gain nothing
    and follow the token rule. The default for sampled chains.

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
            return verify_by_token(rng, proposal, target_log_probs)
        n = proposal.tokens.shape[1]
        # Strict: a uniform is never 0, so a prefix that the target excludes is never accepted.
        passed = proposal.valid & (jnp.log(rng.uniforms(n)) < log_thresholds(proposal, target_log_probs))
        numbers = jnp.arange(1, n + 1, dtype=jnp.int32)[None]
        # Unlike the token rule, takes the longest prefix even if a shorter one failed its test.
        accepted = jnp.max(jnp.where(passed, numbers, 0), axis=1, initial=0)
        return draw_next(proposal, accepted, rng, target_log_probs, _ratio_after(proposal, target_log_probs, accepted))


def log_prefix_ratio(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n_plus_1"]:
    """Computes `log P_i`, the log-probability that at least the first `i` drafts are accepted; `P_0` is 1."""
    target = target_at(proposal, target_log_probs)
    draft = draft_at(proposal, draft_log_probs(proposal))
    ratio = [jnp.zeros(target.shape[:1], target.dtype)]
    for step in jnp.unstack(target - draft, axis=1):
        joint = jnp.minimum(ratio[-1] + step, 0.0)
        # NaN means that the target or the drafter excludes the draft, which is then never accepted.
        ratio.append(jnp.where(jnp.isnan(joint), -jnp.inf, joint))
    return jnp.stack(ratio, axis=1)


def log_thresholds(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """Computes the log-threshold for each draft's uniform; the last uniform below its threshold ends the prefix.

    The threshold is `P_i` at a row's last submitted draft. Before it, `R / (R + 1 - P_i)`, where `R` is the
    mass of `max(P_i target - draft, 0)` after draft `i`. Values at drafts that were not submitted are meaningless.
    """
    n = proposal.tokens.shape[1]
    ratio = log_prefix_ratio(proposal, target_log_probs)[:, 1:]

    def by_xla(target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
        scaled = ratio[:, :-1, None] + target_log_probs[:, 1:-1]
        draft = draft_log_probs(proposal)[:, 1:]
        mass = jnp.sum(jnp.where(scaled <= draft, 0.0, jnp.exp(scaled) - jnp.exp(draft)), axis=-1)
        return jnp.pad(mass, ((0, 0), (0, n - mass.shape[1])))

    mass = excess(target_log_probs, draft_log_probs(proposal), ratio, by_xla)
    total = mass - jnp.expm1(ratio)
    between = jnp.where(total > 0, jnp.log(mass) - jnp.log(total), 0.0)
    # If the next distribution of the target or the drafter is NaN, the block ends before it.
    between = jnp.where(jnp.isnan(mass), ratio, between)
    submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)[:, None]
    return jnp.where(jnp.arange(1, n + 1, dtype=jnp.int32)[None] == submitted, ratio, between)


def next_log_probs(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b v"]:
    """Computes the log-probabilities, up to a constant, of the token that follows `accepted` drafts.

    They are the target's where every submitted draft was accepted, else those of the residual
    `max(P_i target - draft, 0)` after the `i` accepted drafts. An empty residual (distributions equal up to rounding)
    falls back to the target.
    """
    ratio = _ratio_after(proposal, target_log_probs, accepted)
    return residual_or_target(*residual_after(proposal, target_log_probs, accepted, ratio))


def _ratio_after(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b"]:
    return take_row(log_prefix_ratio(proposal, target_log_probs), accepted)
