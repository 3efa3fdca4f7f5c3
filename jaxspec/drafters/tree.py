"""Drafts a tree of a fixed shape."""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import Tree
from jaxspec.core.validate import shown
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.children import Draw, MostLikely, WithReplacement
from jaxspec.drafters.draft_model import DraftSource, check_takes_trees
from jaxspec.drafters.frontier import Drafted, FrontierDrafter, Level, by_row, descend, first_paths, grow, keep_rows


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeDrafter(FrontierDrafter):
    """Drafts a tree of tokens from a draft model with the target's vocabulary.

    Runs one pass over the last two committed tokens, then one for each level that has children. A tree of depth 4 takes
    four passes, as a chain of 4 does. Only nodes with children are fed.

    Attributes:
      model: any `Model` that takes trees, which requires a cache; or an EAGLE head.
      topology: the tree's shape: `Tree.of_size(16)`, `Tree.balanced((3, 2, 2))`, or
        `Tree.chains(num_drafts, k)` for several drafts side by side.
      draw: how to choose children: `MostLikely()`, `WithoutReplacement()`, `WithReplacement()` or
        `TopAndSampled()`. Greedy policies always take the most probable ones.
      sampling: the policy to draw children with, shared by all rows; `None` uses each row's target policy.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, section 3.
      RSD: Jeon et al. (2024), arXiv:2402.14160, section 3 (`WithoutReplacement`).
      SpecTr: Sun et al. (2023), arXiv:2310.15141, section 4 (`WithReplacement`).

    Example:
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    model: Model | DraftSource
    topology: Tree = dataclasses.field(metadata={"static": True})
    draw: Draw = dataclasses.field(default=MostLikely(), metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Tree):
            raise TypeError(f"topology must be a Tree, got {shown(self.topology)}; pass Tree.of_size(16)")
        if not isinstance(self.draw, Draw):
            raise TypeError(f"draw must be a Draw, got {shown(self.draw)}; pass MostLikely() or WithoutReplacement()")

    @property
    def max_drafts(self) -> int:
        return self.topology.depth

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.topology.size,)

    @property
    def deterministic(self) -> bool:
        """Whether drafts are a function of the text."""
        return self.draw.deterministic

    @property
    def info(self) -> DrafterInfo:
        tree = self.topology
        alike = tree == Tree.chains(tree.widths[0], tree.depth) and isinstance(self.draw, WithReplacement)
        return DrafterInfo(self.model, self.model.context_length, identically_distributed=alike)

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft.check(type(self).__name__, target)
        check_takes_trees(type(self).__name__, self.model)
        if self.sampling is not None and self.draw.deterministic:
            raise ValueError(
                f"{type(self.draw).__name__}() draws nothing, so sampling would be ignored; leave it None, or pass "
                "draw=WithoutReplacement()"
            )
        most = max(map(len, self.topology.children))
        if most > target.vocab_size:
            raise ValueError(f"a node has {most} children, the vocabulary {target.vocab_size} tokens; pass fewer")

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Drafted]:
        policy = context.sampling if self.sampling is None else self.sampling
        draw = MostLikely() if policy.greedy else self.draw
        tree, plan = self.topology, _plan(self.topology)
        window, draft_state = self.draft.first(state, context)
        logits = context.process(self.draft.vocabulary.expand(window.logits[:, None]))
        own = jnp.asarray([plan.first], jnp.int32)
        found, pending = _choose(draw, policy, rng, jnp.int32(0), logits, plan.first, own), None

        if plan.levels:

            def expand(level, logits, carry):
                logits = context.process(self.draft.vocabulary.expand(logits), carry)
                found = _choose(draw, policy, rng, level + 1, logits, plan.most, jnp.asarray(plan.counts)[level])
                picked = jnp.asarray(plan.picked)[level]
                parents = jnp.broadcast_to(picked // plan.most, (logits.shape[0], plan.width))
                tokens = found.tokens[:, picked]
                return Level(tokens, parents, descend(carry, parents, tokens, level + 1), found)

            first = found.tokens[:, plan.fed_first]
            path = first_paths(context, first, self.max_drafts)
            below, pending = grow(self.draft, context, window, first, plan.levels, path, expand)
            found = found.followed_by(below)
        slots = jnp.broadcast_to(jnp.asarray(plan.slots), (context.length.shape[0], tree.size))
        tokens, there = found.tokens[:, plan.nodes], found.there[:, plan.nodes]
        missing = jnp.asarray(tree.ancestors)[None] & ~there[:, None]
        parents = jnp.broadcast_to(jnp.asarray(tree.parents, jnp.int32), tokens.shape)
        next_log_probs = None
        if found.weights is not None:
            before = jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=-1)[:, plan.before]
            next_log_probs = draw.log_probs(found.weights[:, plan.log_probs], before, tokens, plan.last)
        proposal = Proposal(tokens, ~jnp.any(missing, axis=-1), next_log_probs, parents, tree.depth)
        return keep_rows(proposal, self.draft.has_context(context)), Drafted(draft_state, pending, slots, parents)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Children:
    """Holds the children of several nodes, adjacent for each node, and the weights that they were chosen by.

    `weights` is `None` for deterministic guesses.
    """

    tokens: Int[Array, "*level b m"]
    there: Bool[Array, "*level b m"]
    weights: Float[Array, "*level b w v"] | None

    def followed_by(self, levels: Self) -> Self:
        """Appends the children of the levels below."""
        return jax.tree.map(lambda x, below: jnp.concatenate([x, by_row(below)], axis=1), self, levels)


def _choose(
    draw: Draw, policy: Policy, rng: Rng, level, logits: Float[Array, "b w v"], count: int, counts: Int[Array, "w"]
) -> _Children:
    weights = draw.weights(policy, logits)
    tokens, there = draw.children(rng, level, weights, count, counts)
    flat = lambda x: x.reshape(x.shape[0], -1)  # noqa: E731
    return _Children(flat(tokens), flat(there), None if draw.deterministic else weights)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Holds host-side indices of a tree's nodes among the nodes that are fed and the children that are found.

    Each level's nodes with children are fed side by side in `width` places, and each gets `most` children, only some of
    which are in the tree.

    Attributes:
      first: the number of children of the text.
      most: the largest number of children of any other node.
      levels: the number of levels to feed.
      width: the number of places in a level.
      fed_first: the text's children to feed.
      picked: the children of each fed level to feed next.
      slots: the index of each node among all fed nodes; -1 if it has no children.
      nodes: the index of each node among all children found.
      log_probs: the index of each node's distribution among all those found.
      before: each node's earlier siblings, padded with -1.
      counts: the number of children of each fed node, by level and place.
      last: whether each node is its parent's last child.
    """

    first: int
    most: int
    levels: int
    width: int
    fed_first: np.ndarray
    picked: np.ndarray
    slots: np.ndarray
    nodes: np.ndarray
    log_probs: np.ndarray
    before: np.ndarray
    counts: np.ndarray
    last: np.ndarray


@functools.cache
def _plan(tree: Tree) -> _Plan:
    fed = [[node for node in nodes if tree.children[node]] for nodes in tree.levels[:-1]]
    levels, width = len(fed), max(map(len, fed), default=0)
    first, most = len(tree.children[-1]), max(map(len, tree.children[:-1]))
    slots = np.full(tree.size + 1, -1, np.int32)
    for level, nodes in enumerate(fed):
        slots[nodes] = level * width + np.arange(len(nodes), dtype=np.int32)
    parents, ranks = np.array(tree.parents), np.array(tree.ranks)
    log_probs = 1 + slots[parents]
    nodes = np.where(parents < 0, ranks, first + slots[parents] * most + ranks)
    picked = np.zeros((levels + 1, width), np.int32)
    for level, fed_nodes in enumerate(fed):
        # Relative to the children of the level above.
        offset = first + (level - 1) * width * most if level else 0
        picked[level, : len(fed_nodes)] = nodes[fed_nodes] - offset
    siblings = [tree.children[parent][:rank] for parent, rank in zip(tree.parents, tree.ranks, strict=True)]
    before = np.full((tree.size, max(map(len, siblings))), -1, np.int32)
    for node, earlier in enumerate(siblings):
        before[node, : len(earlier)] = earlier
    counts = np.zeros((levels, width), np.int32)
    for level, fed_nodes in enumerate(fed):
        counts[level, : len(fed_nodes)] = [len(tree.children[node]) for node in fed_nodes]
    last = np.array([tree.children[parent][-1] == node for node, parent in enumerate(tree.parents)])
    return _Plan(first, most, levels, width, picked[0], picked[1:], slots[:-1], nodes, log_probs, before, counts, last)
