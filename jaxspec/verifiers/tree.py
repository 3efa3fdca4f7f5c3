"""Verifies trees by sampling from the target and walking down the tree."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.tree_walk import DraftTree, TreeWalk, WalkResult, draw_verdict, earlier, same_tokens_before


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeVerifier(Verifier):
    """Samples the target's token at each node, and descends while it is one of the drafted children.

    Needs no draft distribution, so it is lossless for any tree: static or dynamic, sampled or deterministic. A step
    down succeeds with the target's total probability of the drafted children. That is optimal for deterministic drafts,
    for whose trees this verifier is the default. For sampled drafts, `MultiDraftVerifier` accepts more. On a chain, a
    draft is accepted with its probability under the target.

    A child is accepted with its conditional probability, given that the children before it were not drawn. Only the
    last token is thus sampled over the whole vocabulary, and the cost does not grow with the tree.

    Example:
        >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 1)))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.TreeVerifier(), max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 4)

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781.
      EAGLE-2: Li et al. (2024), arXiv:2406.16858, verifies like this.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, descend(DraftTree.of(proposal), target_log_probs, uniforms))


# Other verifiers use it for deterministic drafts.
verify_certain = TreeVerifier().verify


def descend(
    tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
) -> WalkResult:
    """Walks down the tree, accepting nodes by `uniforms`, one per node. Pure."""
    walk = TreeWalk.start(tree)
    thresholds, tested = jnp.zeros_like(uniforms), jnp.zeros(uniforms.shape, jnp.bool_)
    for _ in range(tree.depth):
        chances = child_probs(tree, target_log_probs, walk)
        left = 1 - (jnp.cumsum(chances, axis=1) - chances)
        share = jnp.where(chances < left, chances / jnp.maximum(left, jnp.finfo(left.dtype).tiny), 1.0)
        share = jnp.where(chances > 0, share, 0.0)
        # Strict, so that a child of probability 0 is never drawn.
        passed = (uniforms < share) & walk.going[:, None]
        looked_at = walk.candidates(tree) & walk.going[:, None] & ~earlier(passed)
        thresholds, tested = jnp.where(looked_at, share, thresholds), tested | looked_at
        walk = walk.advance(tree, passed & looked_at)
    log_probs = walk.log_probs(target_log_probs)
    rejected = jnp.where(walk.candidates(tree), tree.tokens, log_probs.shape[1])
    rows = jnp.arange(log_probs.shape[0], dtype=jnp.int32)[:, None]
    rest = log_probs.at[rows, rejected].set(-jnp.inf, mode="drop")
    empty = jnp.max(rest, axis=1, keepdims=True) == -jnp.inf
    return walk.result(jnp.where(empty, log_probs, rest), thresholds, tested)


def child_probs(tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], walk: TreeWalk) -> Float[Array, "b n"]:
    """Returns the target's probability of each drafted child of the accepted text; 0 for all other nodes.

    Of children with the same token, only the first has a nonzero probability.
    """
    found = walk.candidates(tree)
    found = found & ~same_tokens_before(tree, found)
    rows = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
    at = walk.row()[:, None]
    return jnp.where(found, jnp.exp(target_log_probs[rows, at, tree.tokens]), 0.0)
