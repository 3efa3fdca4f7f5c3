"""Accepts drafts token by token: rejection sampling."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import count_leading, take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenVerifier(Verifier):
    """Verifies by speculative sampling: accepts draft `x` with probability `min(1, target(x) / draft(x))`.

    The first rejected draft is replaced by a token of the residual distribution `max(target - draft, 0)`,
    normalized; after full acceptance a bonus token follows the target's distribution. Lossless for any
    draft distribution. The default for deterministic chains.

    Example:
        >>> drafter, policy = jaxspec.ModelDrafter(draft, k=3), jaxspec.Sampling(temperature=0.8)
        >>> options = dict(key=key, sampling=policy, verifier=jaxspec.TokenVerifier(), max_new_tokens=8)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 8)

    References:
      Leviathan et al. (2022), arXiv:2211.17192, algorithm 1.
      Chen et al. (2023), arXiv:2302.01318, algorithm 2.
    """

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        # Strict: a uniform is never 0, so a token the target excludes is never accepted.
        passed = jnp.log(uniforms) < log_acceptance(proposal, target_log_probs)
        accepted = count_leading(proposal.valid & passed)
        log_probs = next_log_probs(proposal, target_log_probs, accepted)
        next_token = argmax(log_probs + rng.next_noise(log_probs.shape[-1]))
        return Verdict(accepted, next_token)


def log_acceptance(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """Computes the log-probability with which each draft is accepted, given that those before it were.

    Args:
      proposal: a chain of `n` drafts.
      target_log_probs: the target's log-probabilities: row 0 after the committed text, row `i + 1` after draft `i`.

    Returns:
      At most 0; -inf where the target excludes the draft.

    Example:
        >>> drafts = jaxspec.core.Proposal(jnp.asarray([[1]], jnp.int32), jnp.asarray([[True]]))  # certain
        >>> jaxspec.verifiers.log_acceptance(drafts, jnp.log(jnp.full((1, 2, 4), 0.25)))[0].tolist()  # log 1/4
        [-1.38...]
    """
    at = proposal.tokens[..., None]
    target = jnp.take_along_axis(target_log_probs[:, :-1], at, axis=-1)[..., 0]
    if proposal.log_probs is None:
        return target
    draft = jnp.take_along_axis(proposal.log_probs, at, axis=-1)[..., 0]
    return jnp.minimum(target - draft, 0.0)


def next_log_probs(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b v"]:
    """Computes the log-probabilities, up to a constant, of the token that follows `accepted` drafts.

    The target's distribution where every submitted draft was accepted, else the residual at the rejected
    one. An empty residual (draft and target equal up to rounding) falls back to the target.

    Args:
      proposal: a chain of `n` drafts.
      target_log_probs: the target's log-probabilities: row 0 after the committed text, row `i + 1` after draft `i`.
      accepted: how many drafts of each row were accepted, from 0 to those that are valid.

    Returns:
      Log-probabilities up to a constant.

    Example:
        >>> drafts = jaxspec.core.Proposal(jnp.asarray([[1]], jnp.int32), jnp.asarray([[True]]))
        >>> rejected = jaxspec.verifiers.next_log_probs(drafts, jnp.zeros((1, 2, 3)), jnp.asarray([0], jnp.int32))
        >>> rejected.tolist()  # never the draft that was rejected
        [[0.0, -inf, 0.0]]
    """
    target = take_row(target_log_probs, accepted)
    n = proposal.tokens.shape[1]
    if n == 0:
        return target
    rejected_at = jnp.minimum(accepted, n - 1)
    if proposal.log_probs is None:
        token = take_row(proposal.tokens, rejected_at)
        ids = jnp.arange(target.shape[-1], dtype=token.dtype)
        residual = jnp.where(ids[None] == token[:, None], -jnp.inf, target)
    else:
        residual = log_residual(target, take_row(proposal.log_probs, rejected_at))
    submitted = jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
    rejected = (accepted < submitted) & (jnp.max(residual, axis=-1) > -jnp.inf)
    return jnp.where(rejected[:, None], residual, target)


def log_residual(target: Float[Array, "b v"], draft: Float[Array, "b v"]) -> Float[Array, "b v"]:
    """Computes `log max(target - draft, 0)` from log-probabilities, without a subtraction of small numbers.

    Args:
      target: log-probabilities; also up to a factor, as in block verification.
      draft: log-probabilities. Where one is NaN the result is empty: such a draft was never accepted.

    Returns:
      Log-probabilities up to a constant; -inf everywhere in a row whose residual is empty.

    Example:
        >>> target_probs, draft_probs = jnp.asarray([[0.7, 0.3]]), jnp.asarray([[0.5, 0.5]])
        >>> residual = jaxspec.verifiers.log_residual(jnp.log(target_probs), jnp.log(draft_probs))
        >>> np.exp(residual).round(3).tolist() == [[np.float32(0.2), 0.0]]
        True
    """
    excess = target > draft
    gap = jnp.where(excess, draft - target, -1.0)
    return jnp.where(excess, target + jnp.log1p(-jnp.exp(gap)), -jnp.inf)
