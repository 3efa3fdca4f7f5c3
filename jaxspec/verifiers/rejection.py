"""Accepts drafts token by token: rejection sampling."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import count_leading, take_row
from jaxspec.core.native_sampling import choose_next
from jaxspec.core.parts import at_tokens, exchange, find, in_part, parts_of, shard_argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.typed import typed
from jaxspec.verifiers.base import Verifier


def residual_or_target(
    rejected: Bool[Array, "b"], residual: Float[Array, "b v"], target: Float[Array, "b v"]
) -> Float[Array, "b v"]:
    """Returns the residual where a draft was rejected and the residual is not empty, else the target's distribution.

    Args:
      rejected: `[b]` mask of the rows whose next draft was rejected.
      residual: `[b, v]` log-probabilities of the residual, up to a constant.
      target: `[b, v]` log-probabilities of the target.
    """
    some = rejected & (jnp.max(residual, axis=-1) > -jnp.inf)
    return jnp.where(some[:, None], residual, target)


def draw_next(
    proposal: Proposal,
    accepted: Int[Array, "b"],
    rng: RoundKeys,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    log_ratio: Float[Array, "b"] | None = None,
) -> Verdict:
    """Returns the verdict, its next token sampled from what follows the accepted drafts of a chain.

    Args:
      proposal: a chain of `n` drafts per row.
      accepted: the number of drafts accepted in each row.
      rng: the round's source of randomness.
      target_log_probs: the target's log-probabilities.
      log_ratio: the logarithm of the target's factor in the residual; `None` is 0.
    """
    after = lambda target_log_probs: residual_after(proposal, target_log_probs, accepted, log_ratio)  # noqa: E731
    if parts_of(target_log_probs) == 1:
        by_xla = lambda target_log_probs: rng.next_token(residual_or_target(*after(target_log_probs)))  # noqa: E731
        rejected = accepted < jnp.sum(proposal.valid, axis=1, dtype=jnp.int32)
        chain = (proposal.log_probs, proposal.tokens, accepted, rejected, log_ratio)
        return Verdict(accepted, choose_next(target_log_probs, *chain, rng.next_keys(), by_xla))
    rejected, residual, target = after(target_log_probs)
    # Whether the residual is empty is known only after the exchange, so each device takes the argmax of both.
    noise = rng.next_noise(target.shape[-1])
    scores, tokens = shard_argmax(jnp.stack([residual, target], axis=1) + noise[:, None])
    known = proposal.at_drafts
    looked_up = () if known is None else (take_row(known.logits, accepted), target)
    scores, tokens, *values = exchange(scores, tokens, *(find(one[:, None], tokens) for one in looked_up))
    some = rejected & (jnp.max(scores[:, 0], axis=-1) > -jnp.inf)
    source = jnp.where(some, 0, 1)
    place = source * scores.shape[-1] + jnp.argmax(take_row(scores, source), axis=-1)
    token, *at_next = (in_part(one.reshape(one.shape[0], -1), place) for one in (tokens, *values))
    return Verdict(accepted, token, at_next=(at_next[0], at_next[1]) if at_next else None)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenVerifier(Verifier):
    """Verifies by speculative sampling: accepts draft `x` with probability `min(1, target(x) / draft(x))`.

    The first rejected draft is replaced by a token sampled from the normalized residual `max(target - draft, 0)`.
    If all drafts are accepted, a bonus token is sampled from the target. Lossless for any draft distribution. The
    default for deterministic chains.

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
        # Strict: a uniform is never 0, so a token that the target excludes is never accepted.
        passed = jnp.log(uniforms) < log_acceptance(proposal, target_log_probs)
        accepted = count_leading(proposal.valid & passed)
        return draw_next(proposal, accepted, rng, target_log_probs)


# Other verifiers use it for deterministic drafts.
verify_by_token = TokenVerifier().verify


@typed()
def log_acceptance(proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
    """Computes the log-probability of accepting each draft, given that those before it were accepted.

    Args:
      proposal: a chain of `n` drafts per row.
      target_log_probs: `[b, n + 1, v]` log-probabilities of the target: row 0 after the committed text, row `i + 1`
        after draft `i`.

    Returns:
      `[b, n]` log-probabilities, at most 0; -inf where the target excludes the draft.

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
    # The last row gets a token too: slicing it off would copy the other rows of a long chain.
    tokens = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
    return at_tokens(target_log_probs, tokens)[:, :-1]


def draft_at(proposal: Proposal, log_probs: Float[Array, "b n v"]) -> Float[Array, "b n"]:
    """Returns the drafter's log-probability of each draft of a chain; `log_probs` are those of the proposal."""
    known = None if proposal.at_drafts is None else proposal.at_drafts.draft
    return at_tokens(log_probs, proposal.tokens) if known is None else known


@typed()
def next_log_probs(
    proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], accepted: Int[Array, "b"]
) -> Float[Array, "b v"]:
    """Computes the log-probabilities, up to a constant, of the token that follows `accepted` drafts.

    They are the target's where every submitted draft was accepted, else those of the residual at the rejected
    draft. An empty residual (draft and target equal up to rounding) falls back to the target.

    Args:
      proposal: a chain of `n` drafts per row.
      target_log_probs: `[b, n + 1, v]` log-probabilities of the target: row 0 after the committed text, row `i + 1`
        after draft `i`.
      accepted: `[b]` the number of drafts accepted in each row, at most the number of valid ones.

    Example:
        >>> drafts = jaxspec.core.Proposal(jnp.asarray([[1]], jnp.int32), jnp.asarray([[True]]))
        >>> rejected = jaxspec.verifiers.next_log_probs(drafts, jnp.zeros((1, 2, 3)), jnp.asarray([0], jnp.int32))
        >>> rejected.tolist()  # never the draft that was rejected
        [[0.0, -inf, 0.0]]
    """
    return residual_or_target(*residual_after(proposal, target_log_probs, accepted))


def residual_after(
    proposal: Proposal,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    accepted: Int[Array, "b"],
    log_ratio: Float[Array, "b"] | None = None,
) -> tuple[Bool[Array, "b"], Float[Array, "b v"], Float[Array, "b v"]]:
    """Returns the mask of rows that rejected a draft, the residual, and the target's log-probabilities.

    The arguments are those of `draw_next`.
    """
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
        scaled = target if log_ratio is None else target + log_ratio[:, None]
        residual = log_residual(scaled, take_row(proposal.log_probs, rejected_at))
    return accepted < jnp.sum(proposal.valid, axis=1, dtype=jnp.int32), residual, target


@typed()
def log_residual(target: Float[Array, "b v"], draft: Float[Array, "b v"]) -> Float[Array, "b v"]:
    """Computes `log max(target - draft, 0)` from log-probabilities, without subtracting small numbers.

    Args:
      target: `[b, v]` log-probabilities; they may be scaled by a factor, as in block verification.
      draft: `[b, v]` log-probabilities. A NaN gives -inf: such a draft is never accepted.

    Returns:
      `[b, v]` log-probabilities up to a constant; -inf throughout a row whose residual is empty.

    Example:
        >>> target_probs, draft_probs = jnp.asarray([[0.7, 0.3]]), jnp.asarray([[0.5, 0.5]])
        >>> residual = jaxspec.verifiers.log_residual(jnp.log(target_probs), jnp.log(draft_probs))
        >>> np.exp(residual).round(3).tolist() == [[np.float32(0.2), 0.0]]
        True
    """
    excess = target > draft
    gap = jnp.where(excess, draft - target, -1.0)
    return jnp.where(excess, target + jnp.log1p(-jnp.exp(gap)), -jnp.inf)
