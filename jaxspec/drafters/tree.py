"""Drafts a tree whose shape is fixed."""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree import Tree
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.children import Draw, MostLikely, WithReplacement
from jaxspec.drafters.draft_model import Draft, DraftSource, Hidden, as_draft, check_takes_trees
from jaxspec.drafters.frontier import Drafted, Level, by_row, descend, first_paths, grow, of_rows


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeDrafter(Drafter):
    """Drafts a tree of tokens from a draft model with the target's vocabulary.

    Runs one pass over the last two committed tokens, then one for each level that has children: a tree of depth 4 takes
    four passes, as a chain of 4 does. Only nodes with children are fed.

    Attributes:
      model: any `Model` that takes trees, which one without a cache does not; or an EAGLE head.
      topology: the tree's shape: `Tree.of_size(16)`, `Tree.balanced((3, 2, 2))`, or
        `Tree.chains(num_drafts, k)` for several drafts side by side.
      draw: how children are chosen: `MostLikely()`, `WithoutReplacement()` or
        `WithReplacement()`. A greedy policy takes the most probable whatever is passed.
      sampling: the policy that children are drawn with, one for all rows; `None` is the target's
        own, row by row.

    References:
      SpecInfer: Miao et al. (2023), arXiv:2305.09781, section 3.
      RSD: Jeon et al. (2024), arXiv:2402.14160, section 3 (`WithoutReplacement`).
      SpecTr: Sun et al. (2023), arXiv:2310.15141, section 4 (`WithReplacement`).

    Example:
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "tree"
    model: Model | DraftSource
    topology: Tree = dataclasses.field(metadata={"static": True})
    draw: Draw = dataclasses.field(default=MostLikely(), metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Tree):
            raise TypeError(f"topology must be a Tree, got {self.topology!r}; pass Tree.of_size(16)")
        if not isinstance(self.draw, Draw):
            raise TypeError(f"draw must be a Draw, got {self.draw!r}; pass MostLikely() or WithoutReplacement()")

    @property
    def tree(self) -> bool:
        return True

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
    def identically_distributed(self) -> bool:
        """Whether the drafts are independent chains from one distribution."""
        tree = self.topology
        chains = tree == Tree.chains(tree.widths[0], tree.depth)
        return chains and isinstance(self.draw, WithReplacement)

    @property
    def network(self) -> Model | DraftSource:
        return self.model

    @property
    def context_length(self) -> int | None:
        return self._draft.context_length

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self._draft.check(type(self).__name__, target)
        check_takes_trees(type(self).__name__, self.model)
        if self.sampling is not None and self.draw.deterministic:
            raise ValueError(
                f"{type(self.draw).__name__}() draws nothing, so sampling would be ignored; leave it None, or pass "
                "draw=WithoutReplacement()"
            )
        most = max(map(len, self.topology.children))
        if most > target.vocab_size:
            raise ValueError(f"a node has {most} children, the vocabulary {target.vocab_size} tokens; pass fewer")

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the draft reads."""
        return self._draft.capture

    @property
    def _draft(self) -> Draft:
        return as_draft(self.model, self.max_drafts)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return self._draft.init(context, prefilled, slots)

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Drafted]:
        policy = context.sampling if self.sampling is None else self.sampling
        draw = MostLikely() if policy.greedy else self.draw
        plan = _plan(self.topology)
        window, draft_state = self._draft.first(state, context)
        logits = context.process(self._draft.over_vocabulary(window.logits[:, None]))
        found, pending = _choose(draw, policy, rng, jnp.int32(0), logits, plan.first), None

        if plan.levels:

            def expand(level, logits, carry):
                logits = context.process(self._draft.over_vocabulary(logits), carry)
                found = _choose(draw, policy, rng, level + 1, logits, plan.most)
                picked = jnp.asarray(plan.picked)[level]
                parents = jnp.broadcast_to(picked // plan.most, (logits.shape[0], plan.width))
                tokens = found.tokens[:, picked]
                return Level(tokens, parents, descend(carry, parents, tokens, level + 1), found)

            first = found.tokens[:, plan.fed_first]
            path = first_paths(context, first, self.max_drafts)
            below, pending = grow(self._draft, context, window, first, plan.levels, path, expand)
            found = found.followed_by(below)
        slots = jnp.broadcast_to(jnp.asarray(plan.slots), (context.length.shape[0], self.topology.size))
        proposal = of_rows(_proposal(self.topology, draw, found), self._draft.ready(context))
        assert proposal.parents is not None  # it is a tree's
        return proposal, Drafted(draft_state, pending, slots, proposal.parents)

    def observe(self, state: Drafted, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        cache = state.keep(self._draft.cache(state.draft_state), verdict)
        return self._draft.observe(self._draft.put(state.draft_state, cache), context, verdict, hidden)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Children:
    """Holds the children of some nodes, each node's side by side, and the distributions they come from.

    `weights` is `None` for deterministic guesses.
    """

    tokens: Int[Array, "*level b m"]
    there: Bool[Array, "*level b m"]
    weights: Float[Array, "*level b w v"] | None

    def followed_by(self, levels: Self) -> Self:
        """Appends the children of the levels below."""
        return jax.tree.map(lambda x, below: jnp.concatenate([x, by_row(below)], axis=1), self, levels)


def _choose(draw: Draw, policy: Policy, rng: Rng, level, logits: Float[Array, "b w v"], count: int) -> _Children:
    weights = draw.weights(policy, logits)
    tokens, there = draw.children(rng, level, weights, count)
    flat = lambda x: x.reshape(x.shape[0], -1)  # noqa: E731
    return _Children(flat(tokens), flat(there), None if draw.deterministic else weights)


def _proposal(tree: Tree, draw: Draw, found: _Children) -> Proposal:
    plan = _plan(tree)
    tokens, there = found.tokens[:, plan.nodes], found.there[:, plan.nodes]
    missing = jnp.asarray(tree.ancestors)[None] & ~there[:, None]
    parents = jnp.broadcast_to(jnp.asarray(tree.parents, jnp.int32), tokens.shape)
    next_log_probs = None
    if found.weights is not None:
        before = jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=-1)[:, plan.before]
        next_log_probs = draw.log_probs(found.weights[:, plan.log_probs], before)
    return Proposal(tokens, ~jnp.any(missing, axis=-1), next_log_probs, parents, tree.depth)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Holds the places, on the host, of a tree's nodes among those that are fed and found.

    Each level's nodes with children are fed side by side in `width` places, and each gets `most`
    children, of which the tree has some.

    Attributes:
      first: how many children the text has.
      most: how many any other node has.
      levels: how many levels are fed.
      width: how many places a level has.
      fed_first: which of the text's children are fed.
      picked: which children of each fed level are fed next.
      slots: the place of each node among all that are fed; -1 if it has no children.
      nodes: each node among all children found.
      log_probs: the distribution that each node comes from, among all found.
      before: each node's earlier siblings; -1 pads.
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
        # Among the children of the level above alone.
        offset = first + (level - 1) * width * most if level else 0
        picked[level, : len(fed_nodes)] = nodes[fed_nodes] - offset
    siblings = [tree.children[parent][:rank] for parent, rank in zip(tree.parents, tree.ranks, strict=True)]
    before = np.full((tree.size, max(map(len, siblings))), -1, np.int32)
    for node, earlier in enumerate(siblings):
        before[node, : len(earlier)] = earlier
    return _Plan(first, most, levels, width, picked[0], picked[1:], slots[:-1], nodes, log_probs, before)
