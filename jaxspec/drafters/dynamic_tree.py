"""Drafts a tree that grows where the draft model is confident, so that its shape differs by row and round.

    expand      the best `top_k` nodes of a level are fed; each gets `top_k` children
    rerank      among all children found, the `nodes` with the most probable paths are submitted

Candidates are numbered from the text's children on, and then through each fed node's children in turn, so that parents
have lower numbers than their children.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import check_policy
from jaxspec.core.model import Model
from jaxspec.core.parts import unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import positive
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.draft_model import DraftSource, check_takes_trees
from jaxspec.drafters.frontier import (
    Drafted,
    FrontierDrafter,
    Level,
    by_row,
    descend,
    first_paths,
    grow,
    keep_rows,
    top_tokens,
)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Holds candidate nodes, each with the log-probability of its path from the text.

    `fed` holds the numbers of the fed candidates, in the order of their passes.
    """

    tokens: Int[Array, "b m"]
    scores: Float[Array, "b m"]
    fed: Int[Array, "b fed"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicTreeDrafter(FrontierDrafter):
    """Drafts the tree of the most probable paths that a draft model finds: EAGLE-2's expand and rerank.

    The tree is a function of the text, and its tokens are certain, so any tree verifier preserves the target's
    distribution. Drafting takes `depth` passes over `top_k` tokens.

    Attributes:
      model: any `Model` that takes trees, which requires a cache; or an EAGLE head.
      top_k: the number of nodes to feed in each level, and the number of children of each.
      depth: the largest number of drafts along one path.
      nodes: the number of nodes to submit to verification.
      sampling: the policy whose distribution scores paths, shared by all rows; `None` uses the draft model's own
        distribution, as in the paper. A temperature of 0 leaves one chain.

    References:
      EAGLE-2: Li et al. (2024), arXiv:2406.16858, section 4.

    Example:
      >>> drafter = jaxspec.drafters.DynamicTreeDrafter(draft, top_k=2, depth=3, nodes=6)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    model: Model | DraftSource
    top_k: int = dataclasses.field(default=8, metadata={"static": True})
    depth: int = dataclasses.field(default=5, metadata={"static": True})
    nodes: int = dataclasses.field(default=24, metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "depth", "nodes"):
            positive(name, getattr(self, name))
        check_nodes(self.nodes, self.top_k, self.depth)

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def max_drafts(self) -> int:
        return self.depth

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.nodes,)

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.model, self.model.context_length)

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self.draft.check(type(self).__name__, target)
        check_takes_trees(type(self).__name__, self.model)
        if self.top_k > target.vocab_size:
            raise ValueError(f"top_k is {self.top_k}, the vocabulary has {target.vocab_size} tokens; pass fewer")

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Drafted]:
        window, draft_state = self.draft.first(state, context)
        scores, tokens = self._children(context, window.logits[:, None], None)
        found, pending = Candidates(tokens[:, 0], scores[:, 0], jnp.zeros((tokens.shape[0], 0), jnp.int32)), None
        if self.depth > 1:

            def extend(level, logits, carry):
                scores, path = carry
                added, tokens = self._children(context, logits, path)
                chances, picked, best = expand(scores, added)
                flat = tokens.reshape(tokens.shape[0], -1)
                next_tokens = jnp.take_along_axis(flat, picked, axis=1)
                parents = picked // self.top_k
                path = descend(path, parents, next_tokens, level + 1)
                return Level(next_tokens, parents, (best, path), Candidates(flat, chances, picked))

            carry = found.scores, first_paths(context, found.tokens, self.depth)
            below, pending = grow(self.draft, context, window, found.tokens, self.depth - 1, carry, extend)
            found = join(found, below)
        proposal, drafted = submit(found, self.top_k, self.nodes, self.depth, draft_state, pending)
        return keep_rows(proposal, self.draft.has_context(context)), drafted

    def _children(
        self, context: Context, logits: Float[Array, "b w n"], path: Int[Array, "b w d"] | None
    ) -> tuple[Float[Array, "b w c"], Int[Array, "b w c"]]:
        policy = Sampling() if self.sampling is None else self.sampling
        logits = context.process(self.draft.vocabulary.expand(logits), path)
        return best_children(policy.log_probs(logits), self.top_k)


def check_nodes(nodes: int, top_k: int, depth: int) -> None:
    """Raises `ValueError` if a tree is to have more nodes than expansion finds."""
    found = top_k + (depth - 1) * top_k**2
    if nodes > found:
        raise ValueError(
            f"nodes must be at most {found}, which a top_k of {top_k} finds at a depth of {depth}, got {nodes}; pass "
            "fewer nodes or a larger top_k"
        )


def best_children(
    log_probs: Float[Array, "*rows n"], top_k: int
) -> tuple[Float[Array, "*rows c"], Int[Array, "*rows c"]]:
    """Returns the log-probabilities and tokens of the `top_k` most probable children."""
    # Replicated on every device, so that the search continues without communication.
    scores, tokens = map(unsharded, top_tokens(log_probs, top_k))
    # Clip rounding errors above 0: no path is more probable than its beginning. NaN counts as the worst.
    return jnp.where(scores > -jnp.inf, jnp.minimum(scores, 0.0), -jnp.inf), tokens


def expand(
    scores: Float[Array, "b w"], added: Float[Array, "b w c"]
) -> tuple[Float[Array, "b w_times_c"], Int[Array, "b w"], Float[Array, "b w"]]:
    """Scores the paths of all children, and chooses the best `w`.

    Args:
      scores: the log-probability of the path of each fed node.
      added: each child's log-probability, at most 0.

    Returns:
      The scores of all children's paths; the indices of the best `w`, where ties go to the first; and their scores.
    """
    paths = (scores[..., None] + added).reshape(scores.shape[0], -1)
    best, picked = jax.lax.top_k(paths, scores.shape[1])
    return paths, picked.astype(jnp.int32), best


def join(first: Candidates, levels: Candidates) -> Candidates:
    """Concatenates the text's children and those of the fed levels, `[levels, b, ...]`; renumbers `fed`."""
    count, (depth, batch, width) = first.tokens.shape[1], levels.fed.shape
    offsets = count + levels.tokens.shape[2] * jnp.arange(depth, dtype=jnp.int32)
    # All of the text's children are fed first; the nodes that the last level would feed next are not.
    start = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (batch, count))
    fed = by_row(levels.fed + offsets[:, None, None])[:, : (depth - 1) * width]
    both = lambda x, below: jnp.concatenate([x, by_row(below)], axis=1)  # noqa: E731
    return Candidates(
        both(first.tokens, levels.tokens), both(first.scores, levels.scores), jnp.concatenate([start, fed], axis=1)
    )


def rerank(
    scores: Float[Array, "b m"], parents: Int[Array, "b m"], count: int
) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
    """Returns the `count` best candidates in order of their numbers, and the index of each one's parent among them.

    Ties go to the lower number. A parent's score is at least its child's and its number is lower, so the parent of
    every chosen candidate is chosen too.
    """
    chosen = jnp.sort(jax.lax.top_k(scores, count)[1].astype(jnp.int32), axis=1)
    above = jnp.take_along_axis(parents, chosen, axis=1)
    same = above[:, :, None] == chosen[:, None, :]
    return chosen, jnp.where(above < 0, -1, jnp.argmax(same, axis=2).astype(jnp.int32))


def submit(found: Candidates, top_k: int, nodes: int, depth: int, draft_state, pending) -> tuple[Proposal, Drafted]:
    """Returns the proposal of the best candidates, and the slots of their cache entries."""
    roots = jnp.full((found.tokens.shape[0], top_k), -1, jnp.int32)
    parents = jnp.concatenate([roots, jnp.repeat(found.fed, top_k, axis=1)], axis=1)
    chosen, parents = rerank(found.scores, parents, nodes)
    at = lambda x: jnp.take_along_axis(x, chosen, axis=1)  # noqa: E731
    numbers = jnp.arange(found.fed.shape[1], dtype=jnp.int32)[None, None]
    slots = jnp.max(jnp.where(chosen[:, :, None] == found.fed[:, None], numbers, -1), axis=2, initial=-1)
    proposal = Proposal(at(found.tokens), at(found.scores) > -jnp.inf, None, parents, depth)
    return proposal, Drafted(draft_state, pending, slots, parents)
