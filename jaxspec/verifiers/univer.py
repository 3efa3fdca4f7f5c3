"""Verifies trees of top tokens and sampled tokens: UniVer."""

import dataclasses
import functools
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import first_true
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.traversal import LocalRejection
from jaxspec.verifiers.tree_walk import DraftTree, draft_log_probs
from jaxspec.verifiers.upward_walk import verify_up, walk_up


@register_dataclass
@dataclasses.dataclass(frozen=True)
class UniVerVerifier(Verifier):
    """Verifies the sampled children of a node before its certain ones, and decides on the way up from the leaves.

    For trees in which some children of a node are functions of the text, such as its most probable tokens, and the
    others are sampled from what remains: `TreeDrafter(model, topology, jaxspec.drafters.TopAndSampled())`. Write `P`
    for the probability of entering the node, `K` for its certain children, and `s` for the distribution of the sampled
    child `u`, which is 0 on `K`:

        u not in K     a(u) = min(1, P target(u) / s(u))
        k in K         a(k) = P target(k) (1 - a(u)) / Z,    Z = 1 - P + sum over v of max(P target(v) - s(v), 0)

    A certain child thus keeps the target's whole mass, and the sampled one also covers tokens that nobody listed.
    Lossless for any tree: several sampled children, with or without replacement, are verified as by
    `TraversalVerifier`, and so is a chain, as a block. Deterministic trees are verified as by `TreeVerifier`.

    Example:
        >>> draw = jaxspec.drafters.TopAndSampled()
        >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)), draw)
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.verifiers.UniVerVerifier())
        >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=4, **options).tokens.shape
        (2, 4)

    References:
      UniVer (2026), arXiv:2605.04543.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        return verify_up(_SampledFirst(), rng, proposal, target_log_probs)


@dataclasses.dataclass(frozen=True)
class _SampledFirst(LocalRejection):
    """Rejects as traversal does, and offers the sampled children first; a certain one has a one-hot distribution.

    The order may be chosen, because a certain child is a function of the text and of the samples before it: the
    distribution of the others does not depend on it.
    """

    def next_child(self, tree: DraftTree, children: Bool[Array, "b n"]) -> Int[Array, "b"]:
        at_token = jnp.take_along_axis(draft_log_probs(tree), tree.tokens[..., None], axis=2)[..., 0]
        sampled = children & (at_token < 0)
        return first_true(jnp.where(jnp.any(sampled, axis=1, keepdims=True), sampled, children))


# `descend(tree, target_log_probs, uniforms)`: walks to a leaf and back up. Pure.
descend = functools.partial(walk_up, _SampledFirst())
