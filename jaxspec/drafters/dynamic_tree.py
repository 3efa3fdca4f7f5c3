"""Drafts a tree that grows where the draft model is sure: another in each row and round.

    expand      the best `top_k` nodes of a level are fed; each gets `top_k` children
    rerank      of all children found, the `nodes` with the most probable paths are submitted

A candidate's number counts the text's children first, and then each fed node's in turn, so that
parents have lower numbers than their children.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import check_policy
from jaxspec.core.model import Model
from jaxspec.core.parts import whole
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.tree_arguments import positive
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.draft_model import Draft, DraftSource, Hidden, as_draft, check_takes_trees
from jaxspec.drafters.frontier import Drafted, Level, by_row, descend, first_paths, grow, of_rows, top_tokens


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Holds nodes that could be submitted, each with the log-probability of its path from the text.

    `fed` numbers the fed candidates, in the order of their passes.
    """

    tokens: Int[Array, "b m"]
    scores: Float[Array, "b m"]
    fed: Int[Array, "b fed"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicTreeDrafter(Drafter):
    """Drafts the tree of the most probable paths that a draft model finds: EAGLE-2's expand and rerank.

    The tree is a function of the text, and its tokens are certain, so any verifier of trees keeps the target's
    distribution. Drafting takes `depth` passes over `top_k` tokens.

    Attributes:
      model: any `Model` that takes trees, which one without a cache does not; or an EAGLE head.
      top_k: how many nodes of a level are fed, and how many children each gets.
      depth: the most drafts along one path.
      nodes: how many are submitted to verification.
      sampling: the policy whose distribution scores paths, one for all rows; `None` is the draft model's
        own distribution, as in the paper. A temperature of 0 leaves one chain.

    References:
      EAGLE-2: Li et al. (2024), arXiv:2406.16858, section 4.

    Example:
      >>> drafter = jaxspec.drafters.DynamicTreeDrafter(draft, top_k=2, depth=3, nodes=6)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "dynamic-tree"
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
    def tree(self) -> bool:
        return True

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
        if self.top_k > target.vocab_size:
            raise ValueError(f"top_k is {self.top_k}, the vocabulary has {target.vocab_size} tokens; pass fewer")

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
        window, draft_state = self._draft.first(state, context)
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
            below, pending = grow(self._draft, context, window, found.tokens, self.depth - 1, carry, extend)
            found = join(found, below)
        proposal, drafted = submit(found, self.top_k, self.nodes, self.depth, draft_state, pending)
        return of_rows(proposal, self._draft.ready(context)), drafted

    def observe(self, state: Drafted, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        cache = state.keep(self._draft.cache(state.draft_state), verdict)
        return self._draft.observe(self._draft.put(state.draft_state, cache), context, verdict, hidden)

    def _children(
        self, context: Context, logits: Float[Array, "b w n"], path: Int[Array, "b w d"] | None
    ) -> tuple[Float[Array, "b w c"], Int[Array, "b w c"]]:
        policy = Sampling() if self.sampling is None else self.sampling
        logits = context.process(self._draft.over_vocabulary(logits), path)
        return best_children(policy.log_probs(logits), self.top_k)


def check_nodes(nodes: int, top_k: int, depth: int) -> None:
    """Raises `ValueError` if a tree has more nodes than are found."""
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
    # Complete on every device: the search goes on in them without a word to the others.
    scores, tokens = map(whole, top_tokens(log_probs, top_k))
    # At most 0, even by rounding: a path is never more probable than its beginning. NaN is worst.
    return jnp.where(scores > -jnp.inf, jnp.minimum(scores, 0.0), -jnp.inf), tokens


def expand(
    scores: Float[Array, "b w"], added: Float[Array, "b w c"]
) -> tuple[Float[Array, "b w_times_c"], Int[Array, "b w"], Float[Array, "b w"]]:
    """Returns the scores of all children's paths, and the best `w` of them: their indices and scores.

    `added` is each child's log-probability, at most 0. Of equals the first is better.
    """
    paths = (scores[..., None] + added).reshape(scores.shape[0], -1)
    best, picked = jax.lax.top_k(paths, scores.shape[1])
    return paths, picked.astype(jnp.int32), best


def join(first: Candidates, levels: Candidates) -> Candidates:
    """Joins the text's children with those of the fed levels, `[levels, b, ...]`; `fed` holds their numbers."""
    count, (depth, batch, width) = first.tokens.shape[1], levels.fed.shape
    offsets = count + levels.tokens.shape[2] * jnp.arange(depth, dtype=jnp.int32)
    # All of the text's children are fed first; what the last level would feed next is not.
    start = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (batch, count))
    fed = by_row(levels.fed + offsets[:, None, None])[:, : (depth - 1) * width]
    both = lambda x, below: jnp.concatenate([x, by_row(below)], axis=1)  # noqa: E731
    return Candidates(
        both(first.tokens, levels.tokens), both(first.scores, levels.scores), jnp.concatenate([start, fed], axis=1)
    )


def rerank(
    scores: Float[Array, "b m"], parents: Int[Array, "b m"], count: int
) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
    """Returns the `count` best candidates in order of their numbers, and the parent of each among them.

    Of equals the lower number is chosen. A parent's score is no lower than its child's and its
    number is, so whatever is chosen, its parent is too.
    """
    chosen = jnp.sort(jax.lax.top_k(scores, count)[1].astype(jnp.int32), axis=1)
    above = jnp.take_along_axis(parents, chosen, axis=1)
    same = above[:, :, None] == chosen[:, None, :]
    return chosen, jnp.where(above < 0, -1, jnp.argmax(same, axis=2).astype(jnp.int32))


def submit(found: Candidates, top_k: int, nodes: int, depth: int, draft_state, pending) -> tuple[Proposal, Drafted]:
    """Returns the proposal of the best candidates, and where their cache entries are."""
    roots = jnp.full((found.tokens.shape[0], top_k), -1, jnp.int32)
    parents = jnp.concatenate([roots, jnp.repeat(found.fed, top_k, axis=1)], axis=1)
    chosen, parents = rerank(found.scores, parents, nodes)
    at = lambda x: jnp.take_along_axis(x, chosen, axis=1)  # noqa: E731
    numbers = jnp.arange(found.fed.shape[1], dtype=jnp.int32)[None, None]
    slots = jnp.max(jnp.where(chosen[:, :, None] == found.fed[:, None], numbers, -1), axis=2, initial=-1)
    proposal = Proposal(at(found.tokens), at(found.scores) > -jnp.inf, None, parents, depth)
    return proposal, Drafted(draft_state, pending, slots, parents)
