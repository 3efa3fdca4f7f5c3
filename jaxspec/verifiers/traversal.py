"""Traversal verification: block verification for trees, from the leaves to the root."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.rows import first_true, take_row
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.tree_walk import WalkResult, as_tree, draw_verdict


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TraversalVerifier(Verifier):
    """Go down to a leaf, and decide on the way back whether the path so far is kept as a whole.

    Each node carries the running ratio of its path, so that a poor token can be rescued by good
    ones below it. A refused path passes what the target still wants of it to its parent, where
    the next sibling is tried. Weng et al. 2505.12398, algorithm 1; on a chain it is block
    verification (Sun et al. 2403.10444). Lossless for drafts drawn with or without replacement.

    Certain drafts (without a distribution) are verified as `TreeVerifier` does: there is nothing to gain.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs) -> Verdict:
        if proposal.log_probs is None:
            return TreeVerifier().verify(rng, proposal, target_log_probs)
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, descend(as_tree(proposal), target_log_probs, uniforms))


def descend(
    tree: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> WalkResult:
    """The path that `uniforms`, one a node, lead to."""
    state = jax.lax.while_loop(
        lambda state: jnp.any(~state.ended),
        lambda state: _visit(state, tree, target_log_probs, uniforms),
        _Traversal.start(tree, target_log_probs),
    )
    path = jnp.maximum(state.rows[:, 1:] - 1, 0)
    return WalkResult(state.level, path, state.wanted(target_log_probs, state.level), state.thresholds, state.tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Traversal:
    """The path from the root to the node being visited; arrays over levels are a stack.

    Attributes:
      level: the visited node's depth; 0 is the root.
      rows: each level's row of logits.
      log_ratio: each level's running ratio, the probability that the path to it is kept.
      residual: what the target still wants after each level's node, once a child was refused.
      refused: whether one was; what is wanted is the target's own distribution until then.
      unseen: the nodes that were not visited.
      ended: the rows whose path is decided.
      tested: the nodes whose uniform was looked at.
      thresholds: what it was compared with.
    """

    level: Int[Array, "b"]
    rows: Int[Array, "b levels"]
    log_ratio: Float[Array, "b levels"]
    residual: Float[Array, "b levels v"]
    refused: Bool[Array, "b levels"]
    unseen: Bool[Array, "b n"]
    ended: Bool[Array, "b"]
    tested: Bool[Array, "b n"]
    thresholds: Float[Array, "b n"]

    @classmethod
    def start(cls, tree: Proposal, target_log_probs) -> "_Traversal":
        batch, _, vocab = target_log_probs.shape
        levels, dtype = tree.depth + 1, target_log_probs.dtype
        none, never = jnp.zeros(batch, jnp.int32), jnp.zeros((batch, levels), jnp.bool_)
        return cls(
            level=none,
            rows=jnp.zeros((batch, levels), jnp.int32),
            log_ratio=jnp.zeros((batch, levels), dtype),
            residual=jnp.zeros((batch, levels, vocab), dtype),
            refused=never,
            unseen=tree.valid,
            ended=none > 0,
            tested=jnp.zeros(tree.tokens.shape, jnp.bool_),
            thresholds=jnp.zeros(tree.tokens.shape, dtype),
        )

    def wanted(self, target_log_probs, level: Int[Array, "b"]) -> Float[Array, "b v"]:
        """The log-probabilities that the target still wants after a level's node."""
        refused = take_row(self.refused, level)[:, None]
        return jnp.where(
            refused, take_row(self.residual, level), take_row(target_log_probs, take_row(self.rows, level))
        )

    def log_wanted(self, target_log_probs, token: Int[Array, "b"]) -> Float[Array, "b"]:
        """The same at the visited node, of one token."""
        batch = jnp.arange(token.shape[0], dtype=jnp.int32)
        residual = self.residual[batch, self.level, token]
        target = target_log_probs[batch, take_row(self.rows, self.level), token]
        return jnp.where(take_row(self.refused, self.level), residual, target)


def _visit(state: _Traversal, tree: Proposal, target_log_probs, uniforms) -> _Traversal:
    """One step in each row: down to the next child, or the decision on a node that has none left."""
    row, log_ratio = take_row(state.rows, state.level), take_row(state.log_ratio, state.level)
    children = state.unseen & (tree.parents + 1 == row[:, None]) & ~state.ended[:, None]
    down = jnp.any(children, axis=1)
    decide = ~down & ~state.ended
    inner = row > 0
    node = jnp.maximum(row - 1, 0)
    # The root is always kept. Strict, so that a ratio of 0 never is.
    keep = decide & (~inner | (jnp.log(take_row(uniforms, node)) < log_ratio))
    looked_at = (decide & inner)[:, None] & (_numbers(tree) == node[:, None])
    state = dataclasses.replace(
        state,
        ended=state.ended | keep,
        tested=state.tested | looked_at,
        thresholds=jnp.where(looked_at, jnp.exp(log_ratio)[:, None], state.thresholds),
    )
    state = _back(state, tree, target_log_probs, decide & ~keep, node)
    return _down(state, tree, target_log_probs, down, first_true(children))


def _down(state: _Traversal, tree: Proposal, target_log_probs, rows: Bool[Array, "b"], node) -> _Traversal:
    """Visits a child in those rows."""
    token = take_row(tree.tokens, node)
    batch = jnp.arange(token.shape[0], dtype=jnp.int32)
    gain = state.log_wanted(target_log_probs, token) - tree.log_probs[batch, node, token]
    ratio = jnp.minimum(take_row(state.log_ratio, state.level) + gain, 0.0)
    # A distribution of NaN is no reason to keep a draft.
    ratio = jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)
    level = state.level + rows.astype(jnp.int32)
    put = lambda stack, value: _put(stack, level, rows, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        rows=put(state.rows, node + 1),
        log_ratio=put(state.log_ratio, ratio),
        refused=put(state.refused, jnp.zeros_like(rows)),
        unseen=state.unseen & ~(rows[:, None] & (_numbers(tree) == node[:, None])),
    )


def _back(state: _Traversal, tree: Proposal, target_log_probs, rows: Bool[Array, "b"], node) -> _Traversal:
    """Refuses the node in those rows: its parent goes on with the residual."""
    level = state.level - rows.astype(jnp.int32)
    log_ratio = take_row(state.log_ratio, level)
    # The pass over the vocabulary is made only where a row needs it.
    log_ratio, residual, known = jax.lax.cond(
        jnp.any(rows),
        lambda: _refusal(log_ratio, state.wanted(target_log_probs, level), take_row(tree.log_probs, node)),
        lambda: (log_ratio, jnp.zeros_like(state.residual[:, 0]), rows),
    )
    put = lambda stack, value: _put(stack, level, rows & known, value)  # noqa: E731
    return dataclasses.replace(
        state,
        level=level,
        log_ratio=put(state.log_ratio, log_ratio),
        residual=put(state.residual, residual),
        refused=put(state.refused, rows),
    )


def _refusal(log_ratio, wanted, draft):
    """`after_refusal`, and whether the draft's distribution is known at all: one of NaN changes nothing."""
    return *after_refusal(log_ratio, wanted, draft), ~jnp.isnan(draft[:, 0])


def after_refusal(
    log_ratio: Float[Array, "b"], wanted: Float[Array, "b v"], draft: Float[Array, "b v"]
) -> tuple[Float[Array, "b"], Float[Array, "b v"]]:
    """A node's running ratio and wanted log-probabilities once one more of its children is refused.

    With `rest` the total of `max(ratio * wanted - draft, 0)`, the ratio becomes
    `rest / (rest + 1 - ratio)`, and what is wanted the residual, normalized.
    """
    residual = log_residual(log_ratio[:, None] + wanted, draft)
    log_rest = jax.nn.logsumexp(residual, axis=1)
    rest = jnp.exp(log_rest)
    total = rest - jnp.expm1(log_ratio)
    new_ratio = jnp.where(total > 0, log_rest - jnp.log(jnp.where(total > 0, total, 1.0)), 0.0)
    empty = log_rest == -jnp.inf
    return jnp.minimum(new_ratio, 0.0), jnp.where(empty[:, None], wanted, residual - log_rest[:, None])


def _numbers(tree: Proposal) -> Int[Array, "one n"]:
    return jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None]


def _put(stack: Array, level: Int[Array, "b"], rows: Bool[Array, "b"], value: Array) -> Array:
    """`value` at each row's level of the stack, in `rows`. The other levels are not passed over."""
    # Row by row: a scatter that names its rows by index is gathered where rows are split over devices.
    put = jax.vmap(lambda stack, level, value: stack.at[level].set(value, mode="drop"))
    return put(stack, jnp.where(rows, level, stack.shape[1]), value)
