"""Verifies several drafts per position, by default with recursive rejection sampling."""

import dataclasses
from typing import ClassVar, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.core.leading import first_true, take_row
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.core.validate import shown
from jaxspec.verifiers.base import DraftKind, Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree import verify_certain
from jaxspec.verifiers.tree_walk import DraftTree, TreeWalk, WalkResult, draft_log_probs, draw_verdict


@runtime_checkable
class Rule(Protocol):
    """Accepts or rejects the candidates for one position, one at a time."""

    def check(self, drafter: DraftKind) -> None:
        """Raises `ValueError` if the rule does not apply to the proposals of `drafter`."""
        ...

    def descend(
        self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
    ) -> WalkResult:
        """Walks down the tree, accepting nodes by `uniforms`, one per node. Pure."""
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RecursiveRejection:
    """Accepts a candidate with probability `min(1, residual / draft)`; each rejection updates the residual.

    The residual starts as the target's distribution. Each rejected candidate replaces it by the normalized positive
    part of `residual - draft`, where `draft` is the distribution that the candidate was drawn from, given those before
    it. Candidates may thus be drawn with replacement, without (in Gumbel top-k order), or by different models.

    Example:
        >>> drafter = jaxspec.ModelDrafter(draft, k=2, num_drafts=2)
        >>> verifier = jaxspec.verifiers.MultiDraftVerifier(jaxspec.verifiers.RecursiveRejection())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 4)

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781 (multi-step speculative sampling).
      RSD: Jeon et al. (2024), arXiv:2402.14160, algorithm 2.
    """

    def check(self, drafter: DraftKind) -> None:
        """Accepts any drafter."""

    def descend(
        self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
    ) -> WalkResult:
        """Walks down the tree, accepting nodes by `uniforms`, one per node. Pure."""
        state = jax.lax.while_loop(
            lambda state: jnp.any(state.walk.going),
            lambda state: _try_next(state, tree, target_log_probs, uniforms),
            _Search.start(tree, target_log_probs),
        )
        return state.walk.result(state.residual, state.thresholds, state.tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MultiDraftVerifier(Verifier):
    """Verifies several candidates for each position, using the distributions they were drawn from.

    Accepts any proposal: several chains, one chain, or a tree. Where drafts share a prefix, all of
    them that match the accepted text compete for the next position. Lossless; the default for sampled trees.
    Deterministic drafts are verified as by `TreeVerifier`, which is optimal for them.

    Attributes:
      rule: `RecursiveRejection()`, for candidates from any distributions, drawn with or without replacement
        and by one or several drafters; or `KSequence()`, for independent drafts from one distribution.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, where several models draft.
      SpecTr: Sun et al. (2023), arXiv:2310.15141, where one model drafts several sequences.

    Example:
        >>> drafter = jaxspec.ModelDrafter(draft, k=2, num_drafts=3)
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.verifiers.MultiDraftVerifier())
        >>> generation = jaxspec.generate(target, drafter, prompt, max_new_tokens=4, **options)
        >>> generation.lossless, generation.tokens.shape
        (True, (2, 4))
    """

    trees: ClassVar[bool] = True
    rule: Rule = dataclasses.field(default=RecursiveRejection())

    def check(self, drafter: DraftKind) -> None:
        if isinstance(self.rule, type) or not isinstance(self.rule, Rule):
            raise TypeError(
                f"rule must be RecursiveRejection() or KSequence(), got {shown(self.rule)}; pass one of them"
            )
        self.rule.check(drafter)

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.log_probs is None:
            return verify_certain(rng, proposal, target_log_probs)
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, self.rule.descend(DraftTree.of(proposal), target_log_probs, uniforms))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
    """Holds a walk, the residual at its current position, and the threshold of each tested node."""

    walk: TreeWalk
    residual: Float[Array, "b v"]
    tested: Bool[Array, "b n"]
    thresholds: Float[Array, "b n"]

    @classmethod
    def start(cls, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Self:
        walk = TreeWalk.start(tree)
        walk = dataclasses.replace(walk, going=jnp.any(walk.candidates(tree), axis=1))
        nothing = jnp.zeros(tree.tokens.shape, target_log_probs.dtype)
        return cls(walk, walk.log_probs(target_log_probs), nothing > 0, nothing)


def _try_next(
    state: _Search, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> _Search:
    """Tests the next candidate of each row: steps down to it, or rejects it and updates the residual."""
    walk = state.walk
    node = first_true(walk.candidates(tree) & ~state.tested)
    here = walk.going[:, None] & (jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None] == node[:, None])
    draft, token = take_row(draft_log_probs(tree), node), take_row(tree.tokens, node)[:, None]
    at = lambda log_probs: jnp.take_along_axis(log_probs, token, axis=1)[:, 0]  # noqa: E731
    log_accept = jnp.minimum(at(state.residual) - at(draft), 0.0)
    # Strict, so that a token that the residual excludes is never accepted.
    accept = walk.going & (jnp.log(take_row(uniforms, node)) < log_accept)
    reject = walk.going & ~accept
    tested = state.tested | here
    walk = walk.move(tree, here & accept[:, None], walk.going)
    walk = dataclasses.replace(walk, going=walk.going & jnp.any(walk.candidates(tree) & ~tested, axis=1))
    residual = jax.lax.cond(
        jnp.any(reject),
        lambda: jnp.where(reject[:, None], _next_residual(state.residual, draft), state.residual),
        lambda: state.residual,
    )
    residual = jax.lax.cond(
        jnp.any(accept),
        lambda: jnp.where(accept[:, None], walk.log_probs(target_log_probs), residual),
        lambda: residual,
    )
    thresholds = jnp.where(here, jnp.exp(log_accept)[:, None], state.thresholds)
    return _Search(walk, residual, tested, thresholds)


def _next_residual(residual: Float[Array, "b v"], draft: Float[Array, "b v"]) -> Float[Array, "b v"]:
    """Normalizes the positive part of `residual - draft`; returns `residual` where it is empty (up to rounding)."""
    rest = log_residual(residual, draft)
    total = jax.nn.logsumexp(rest, axis=1, keepdims=True)
    return jnp.where(total > -jnp.inf, rest - total, residual)
