"""Verifies trees from the leaves up: block verification for trees."""

import dataclasses
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import first_true, take_row
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree import verify_certain
from jaxspec.verifiers.tree_walk import DraftTree, WalkResult, draft_log_probs, draw_verdict


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TraversalVerifier(Verifier):
    """Descends to a leaf, then decides on the way back up whether to accept the path to each node as a whole.

    Each node carries the running ratio of its path, so that a poor token can be rescued by good ones below it. A
    rejected path passes its residual to its parent, where the next sibling is tried. On a chain, this is block
    verification. Lossless for drafts sampled with or without replacement. Deterministic drafts are verified as by
    `TreeVerifier`, since there is nothing to gain.

    Example:
        >>> drafter = jaxspec.ModelDrafter(draft, k=2, num_drafts=2)
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.verifiers.TraversalVerifier())
        >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=4, **options).tokens.shape
        (2, 4)

    References:
      Weng et al. (2025), arXiv:2505.12398, algorithm 1.
      Block verification: Sun et al. (2024), arXiv:2403.10444.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        if proposal.log_probs is None:
            return verify_certain(rng, proposal, target_log_probs)
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, descend(DraftTree.of(proposal), target_log_probs, uniforms))


def descend(
    tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> WalkResult:
    """Traverses the tree, accepting paths by `uniforms`, one per node. Pure."""
    state = jax.lax.while_loop(
        lambda state: jnp.any(~state.ended),
        lambda state: _visit(state, tree, target_log_probs, uniforms),
        _Traversal.start(tree, target_log_probs),
    )
    path = jnp.maximum(state.rows[:, 1:] - 1, 0)
    return WalkResult(state.level, path, state.residual(target_log_probs, state.level), state.thresholds, state.tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Traversal:
    """Holds the path from the root to the visited node; arrays over levels are a stack.

    Attributes:
      level: the visited node's depth; 0 is the root.
      rows: the row of logits of each level's node.
      log_ratio: the log of each level's running ratio, the probability of accepting the path to it.
      residuals: the log-probabilities of the residual after each level's node, once a child has been rejected.
      rejected: whether a child has been rejected; until then the residual is the target's distribution.
      unseen: mask of the nodes that have not been visited.
      ended: mask of the batch rows whose path is decided.
      tested: mask of the nodes whose uniforms were compared.
      thresholds: the thresholds that these uniforms were compared with.
    """

    level: Int[Array, "b"]
    rows: Int[Array, "b levels"]
    log_ratio: Float[Array, "b levels"]
    residuals: Float[Array, "b levels v"]
    rejected: Bool[Array, "b levels"]
    unseen: Bool[Array, "b n"]
    ended: Bool[Array, "b"]
    tested: Bool[Array, "b n"]
    thresholds: Float[Array, "b n"]

    @classmethod
    def start(cls, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Self:
        batch, _, vocab = target_log_probs.shape
        levels, dtype = tree.depth + 1, target_log_probs.dtype
        none, never = jnp.zeros(batch, jnp.int32), jnp.zeros((batch, levels), jnp.bool_)
        return cls(
            level=none,
            rows=jnp.zeros((batch, levels), jnp.int32),
            log_ratio=jnp.zeros((batch, levels), dtype),
            residuals=jnp.zeros((batch, levels, vocab), dtype),
            rejected=never,
            unseen=tree.valid,
            ended=none > 0,
            tested=jnp.zeros(tree.tokens.shape, jnp.bool_),
            thresholds=jnp.zeros(tree.tokens.shape, dtype),
        )

    def residual(self, target_log_probs: Float[Array, "b n_plus_1 v"], level: Int[Array, "b"]) -> Float[Array, "b v"]:
        """Returns the log-probabilities of the residual after a level's node."""
        rejected = take_row(self.rejected, level)[:, None]
        target = take_row(target_log_probs, take_row(self.rows, level))
        return jnp.where(rejected, take_row(self.residuals, level), target)

    def residual_of(self, target_log_probs: Float[Array, "b n_plus_1 v"], token: Int[Array, "b"]) -> Float[Array, "b"]:
        """Returns the log-probability of one token in the residual after the visited node."""
        batch = jnp.arange(token.shape[0], dtype=jnp.int32)
        residual = self.residuals[batch, self.level, token]
        target = target_log_probs[batch, take_row(self.rows, self.level), token]
        return jnp.where(take_row(self.rejected, self.level), residual, target)


def _visit(
    state: _Traversal, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> _Traversal:
    """Takes one step in each row: descends to the next child, or decides on a node with no children left."""
    row, log_ratio = take_row(state.rows, state.level), take_row(state.log_ratio, state.level)
    children = state.unseen & (tree.parents + 1 == row[:, None]) & ~state.ended[:, None]
    down = jnp.any(children, axis=1)
    decide = ~down & ~state.ended
    inner = row > 0
    node = jnp.maximum(row - 1, 0)
    # The root is always accepted. Strict, so that a node with ratio 0 never is.
    accept = decide & (~inner | (jnp.log(take_row(uniforms, node)) < log_ratio))
    looked_at = (decide & inner)[:, None] & (_numbers(tree) == node[:, None])
    state = dataclasses.replace(
        state,
        ended=state.ended | accept,
        tested=state.tested | looked_at,
        thresholds=jnp.where(looked_at, jnp.exp(log_ratio)[:, None], state.thresholds),
    )
    state = _back(state, tree, target_log_probs, decide & ~accept, node)
    return _down(state, tree, target_log_probs, down, first_true(children))


def _down(
    state: _Traversal,
    tree: DraftTree,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    rows: Bool[Array, "b"],
    node: Int[Array, "b"],
) -> _Traversal:
    token = take_row(tree.tokens, node)
    batch = jnp.arange(token.shape[0], dtype=jnp.int32)
    gain = state.residual_of(target_log_probs, token) - draft_log_probs(tree)[batch, node, token]
    ratio = jnp.minimum(take_row(state.log_ratio, state.level) + gain, 0.0)
    # A draft whose distribution is NaN is not accepted.
    ratio = jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)
    level = state.level + rows.astype(jnp.int32)
    put = lambda stack, value: _put(stack, level, rows, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        rows=put(state.rows, node + 1),
        log_ratio=put(state.log_ratio, ratio),
        rejected=put(state.rejected, jnp.zeros_like(rows)),
        unseen=state.unseen & ~(rows[:, None] & (_numbers(tree) == node[:, None])),
    )


def _back(
    state: _Traversal,
    tree: DraftTree,
    target_log_probs: Float[Array, "b n_plus_1 v"],
    rows: Bool[Array, "b"],
    node: Int[Array, "b"],
) -> _Traversal:
    """Rejects the node in the given batch rows, and updates its parent's ratio and residual."""
    level = state.level - rows.astype(jnp.int32)
    log_ratio = take_row(state.log_ratio, level)

    def reject():
        draft = take_row(draft_log_probs(tree), node)
        after = after_rejection(log_ratio, state.residual(target_log_probs, level), draft)
        return *after, ~jnp.isnan(draft[:, 0])  # a NaN distribution is unknown, and changes nothing

    # Passes over the vocabulary only if some row needs it.
    log_ratio, residual, known = jax.lax.cond(
        jnp.any(rows),
        reject,
        lambda: (log_ratio, jnp.zeros_like(state.residuals[:, 0]), rows),
    )
    put = lambda stack, value: _put(stack, level, rows & known, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        log_ratio=put(state.log_ratio, log_ratio),
        residuals=put(state.residuals, residual),
        rejected=put(state.rejected, rows),
    )


def after_rejection(
    log_ratio: Float[Array, "b"], residual: Float[Array, "b v"], draft: Float[Array, "b v"]
) -> tuple[Float[Array, "b"], Float[Array, "b v"]]:
    """Computes a node's running ratio and residual after another child is rejected.

    With `mass` the sum of `max(ratio * residual - draft, 0)`, the ratio becomes `mass / (mass + 1 - ratio)`, and the
    residual becomes that positive part, normalized.
    """
    rest = log_residual(log_ratio[:, None] + residual, draft)
    log_mass = jax.nn.logsumexp(rest, axis=1)
    mass = jnp.exp(log_mass)
    total = mass - jnp.expm1(log_ratio)
    new_ratio = jnp.where(total > 0, log_mass - jnp.log(jnp.where(total > 0, total, 1.0)), 0.0)
    empty = log_mass == -jnp.inf
    return jnp.minimum(new_ratio, 0.0), jnp.where(empty[:, None], residual, rest - log_mass[:, None])


def _numbers(tree: DraftTree) -> Int[Array, "one n"]:
    return jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None]


def _put(stack: Array, level: Int[Array, "b"], rows: Bool[Array, "b"], value: Array) -> Array:
    """Writes `value` to the stack at the level of each row in `rows`, without a pass over the other levels."""
    # `vmap` over rows: a scatter that indexes its rows is gathered where rows are split over devices.
    put = jax.vmap(lambda stack, level, value: stack.at[level].set(value, mode="drop"))
    return put(stack, jnp.where(rows, level, stack.shape[1]), value)
