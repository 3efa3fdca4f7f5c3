"""Tree verification by sampling from the target and walking down the tree."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.tree_walk import TreeWalk, WalkResult, as_tree, draw_verdict, earlier, same_tokens_before


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeVerifier(Verifier):
    """Draw the target's token at each node, and go on while it is one of the drafted children.

    Needs no draft distribution, so it is lossless for any tree, static or dynamic, drawn or certain. A
    step down succeeds with the target's mass of the drafted children, which is the best there is
    for certain drafts (Miao et al. 2305.09781; EAGLE-2, 2406.16858, verifies like this). For
    drafts that were drawn, `MultiDraftVerifier` accepts more. On a chain it accepts a draft with
    the target's probability of it.

    A child is accepted with its probability given that the children before it were not drawn, so
    only the last token is drawn from a whole distribution, and the cost does not grow with the tree.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs) -> Verdict:
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, descend(as_tree(proposal), target_log_probs, uniforms))


def descend(
    tree: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> WalkResult:
    """The walk down the tree that `uniforms`, one a node, lead to."""
    walk = TreeWalk.start(tree)
    thresholds, tested = jnp.zeros_like(uniforms), jnp.zeros(uniforms.shape, jnp.bool_)
    for _ in range(tree.depth):
        chances = child_chances(tree, target_log_probs, walk)
        left = 1 - (jnp.cumsum(chances, axis=1) - chances)
        share = jnp.where(chances < left, chances / jnp.maximum(left, jnp.finfo(left.dtype).tiny), 1.0)
        share = jnp.where(chances > 0, share, 0.0)
        # Strict, so that a child without mass is never drawn.
        passed = (uniforms < share) & walk.going[:, None]
        looked_at = walk.candidates(tree) & walk.going[:, None] & ~earlier(passed)
        thresholds, tested = jnp.where(looked_at, share, thresholds), tested | looked_at
        walk = walk.advance(tree, passed & looked_at)
    log_probs = walk.log_probs(target_log_probs)
    refused = jnp.where(walk.candidates(tree), tree.tokens, log_probs.shape[1])
    rows = jnp.arange(log_probs.shape[0], dtype=jnp.int32)[:, None]
    rest = log_probs.at[rows, refused].set(-jnp.inf, mode="drop")
    empty = jnp.max(rest, axis=1, keepdims=True) == -jnp.inf
    return walk.descent(jnp.where(empty, log_probs, rest), thresholds, tested)


def child_chances(
    tree: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], walk: TreeWalk
) -> Float[Array, "b n"]:
    """The target's probability of each drafted child of the accepted text; 0 for all other nodes.

    Children with the same token share one chance: it is the first one's.
    """
    found: Bool[Array, "b n"] = walk.candidates(tree)
    found = found & ~same_tokens_before(tree, found)
    rows = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
    at: Int[Array, "b one"] = walk.row()[:, None]
    return jnp.where(found, jnp.exp(target_log_probs[rows, at, tree.tokens]), 0.0)
