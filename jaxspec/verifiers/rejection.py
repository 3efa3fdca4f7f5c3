"""Accepts drafts token by token: rejection sampling."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.parts import at_tokens
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import count_leading, take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.correction import draw_next, residual_or_target


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
        noise = rng.next_noise(target_log_probs.shape[-1])
        return draw_next(proposal, accepted, noise, *_after(proposal, target_log_probs, accepted))


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
    target = target_at(proposal, target_log_probs)
    if proposal.log_probs is None:
        return target
    return jnp.minimum(target - draft_at(proposal, proposal.log_probs), 0.0)


def target_at(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """Returns the target's log-probability of each draft of a chain, given those before it."""
    if proposal.at_drafts is not None:
        return proposal.at_drafts.target
    # With a token for the last row too: without that row, the rest of a long chain would be copied.
    tokens = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
    return at_tokens(target_log_probs, tokens)[:, :-1]


def draft_at(proposal: Proposal, log_probs: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Returns the log-probability of each draft of a chain among `log_probs`, those of the proposal."""
    known = None if proposal.at_drafts is None else proposal.at_drafts.draft
    return at_tokens(log_probs, proposal.tokens) if known is None else known


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
    return residual_or_target(*_after(proposal, target_log_probs, accepted))


def _after(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> tuple[Bool[Array, "b"], Float[Array, "b v"], Float[Array, "b v"]]:
    """Returns which rows have rejected a draft, the residual there, and the target's log-probabilities."""
    target = take_row(target_log_probs, accepted)
    n = proposal.tokens.shape[1]
    if n == 0:
        return jnp.zeros(accepted.shape, jnp.bool_), target, target
    rejected_at = jnp.minimum(accepted, n - 1)
    if proposal.log_probs is None:
        token = take_row(proposal.tokens, rejected_at)
        ids = jnp.arange(target.shape[-1], dtype=token.dtype)
        residual = jnp.where(ids[None] == token[:, None], -jnp.inf, target)
    else:
        residual = log_residual(target, take_row(proposal.log_probs, rejected_at))
    return accepted < jnp.sum(proposal.valid, axis=1, dtype=jnp.int32), residual, target


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
