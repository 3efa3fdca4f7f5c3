"""Drafts the tree of the most probable paths through a block, for hardware that scores many tokens as fast as one.

One pass of the head gives a distribution for each place. A path's probability is the product of its tokens':

    place 0      a .6   b .3      the best `top_k` tokens after the text
    place 1      c .5   d .4      equal below a and b, or moved by them with a Markov head (DSpark)
    4 nodes      a, ac, b, ad     the most probable paths: .6 .3 .3 .24
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import positive
from jaxspec.drafters.base import Drafter, DrafterInfo
from jaxspec.drafters.dynamic_tree import Candidates, best_children, check_nodes, expand, join, submit
from jaxspec.drafters.frontier import descend, first_paths, keep_rows
from jaxspec.drafters.processed import process_part
from jaxspec.heads.dflash.head import DFlashDrafter, DFlashHead, DFlashState


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashTreeDrafter(Drafter):
    """Drafts the most probable alternatives of each place of a block, in one pass of the head.

    The tree is a function of the text, and its tokens are certain, so any tree verifier preserves the target's
    distribution.

    Attributes:
      head: a head from `jaxspec.load_head`, or trained by `jaxspec.heads.dflash.training.DFlashRecipe`.
      nodes: the number of drafts to submit to verification.
      top_k: the number of children of a node, and the largest number of nodes of a level with children.
      depth: the largest number of drafts along one path, by default and at most that the head was trained for.

    Raises:
      ValueError: the tree cannot have that many nodes, or the block that many places.

    References:
      DFlash (2026), arXiv:2602.06036; expand and rerank of EAGLE-2: Li et al. (2024), arXiv:2406.16858, section 4.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> drafter = jaxspec.heads.dflash.DFlashTreeDrafter(head, nodes=6, top_k=3)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    head: DFlashHead
    nodes: int = dataclasses.field(default=63, metadata={"static": True})
    top_k: int = dataclasses.field(default=8, metadata={"static": True})
    depth: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("nodes", "top_k") if self.depth is None else ("nodes", "top_k", "depth"):
            positive(name, getattr(self, name))
        places, vocabulary = self._chain.max_drafts, self.head.config.vocab_size
        if self.top_k > vocabulary:
            raise ValueError(f"top_k is {self.top_k}, the head guesses {vocabulary} tokens; pass fewer")
        check_nodes(self.nodes, self.top_k, places)
        if (correction := self.head.config.correction) is not None:
            raise ValueError(
                f"a tree needs a head without correction or with a vanilla Markov head over its own draft vocabulary, "
                f"got {type(correction).__name__}; pass DFlashDrafter(head)"
            )

    @property
    def _chain(self) -> DFlashDrafter:
        """The drafter of a chain with the same head, and with the same context."""
        return DFlashDrafter(self.head, k=self.depth)

    @property
    def tree(self) -> bool:
        return True

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def max_drafts(self) -> int:
        return self._chain.max_drafts

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.nodes,)

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's states that the head reads."""
        return self.head.capture

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, self.head.context_length)

    def check(self, target: Model) -> None:
        self._chain.check(target)

    def init(self, context, prefilled, slots) -> DFlashState:
        return self._chain.init(context, prefilled, slots)

    def held(self, state: DFlashState) -> Int[Array, "b"]:
        return self._chain.held(state)

    def extend(self, state: DFlashState, context, prefilled, start) -> DFlashState:
        return self._chain.extend(state, context, prefilled, start)

    def propose(self, rng: Rng, state: DFlashState, context: Context) -> tuple[Proposal, DFlashState]:
        del rng  # nothing is drawn
        last = context.last
        logits = self.head.logits(self._chain.known(state, context))
        children = self._children(context, logits)
        scores, tokens = children(jnp.int32(0), last, None)
        found = Candidates(tokens[:, 0], scores[:, 0], jnp.zeros((last.shape[0], 0), jnp.int32))

        def level(nodes: tuple[Array, Array, Any], place: Array) -> tuple[tuple[Array, Array, Any], Candidates]:
            above, scores, path = nodes
            added, tokens = children(place, above, path)
            paths, picked, best = expand(scores, added)
            flat = tokens.reshape(tokens.shape[0], -1)
            next_tokens = jnp.take_along_axis(flat, picked, axis=1)
            path = descend(path, picked // self.top_k, next_tokens, place)
            return (next_tokens, best, path), Candidates(flat, paths, picked)

        if self.max_drafts > 1:
            places = jnp.arange(1, self.max_drafts, dtype=jnp.int32)
            path = first_paths(context, found.tokens, self.max_drafts)
            _, below = jax.lax.scan(level, (found.tokens, found.scores, path), places)
            found = join(found, below)
        proposal, _ = submit(found, self.top_k, self.nodes, self.max_drafts, None, None)
        return keep_rows(proposal, context.draftable), state

    def observe(self, state: DFlashState, context: Context, verdict: Any, hidden: tuple[Array, ...]) -> DFlashState:
        return self._chain.observe(state, context, verdict, hidden)

    def _children(
        self, context: Context, logits: Float[Array, "b k n"]
    ) -> Callable[[Array, Array, Array | None], tuple[Array, Array]]:
        """Returns a function that finds the best children of nodes: scores and tokens, `[b, w, c]`.

        Its arguments are the children's place, the nodes' tokens, and the paths down to them, if a processor reads
        them.
        """
        head, by_place = self.head, lambda x: jnp.swapaxes(x, 0, 1)[:, :, None]

        def best(logits: Float[Array, "*rows n"]) -> tuple[Float[Array, "*rows c"], Int[Array, "*rows c"]]:
            scores, places = best_children(jax.nn.log_softmax(logits), self.top_k)
            return scores, head.ids[places]

        of_place = by_place(logits)
        moved = lambda place, above: of_place[place] + head.added(head.before(above))  # noqa: E731
        if context.processors:
            own = lambda place, above: jnp.broadcast_to(of_place[place], (*above.shape, logits.shape[2]))  # noqa: E731
            given = moved if head.config.markov_rank else own
            return lambda place, above, path: best(
                process_part(context, given(place, above), path, head.over_vocabulary, head.ids)
            )
        if head.config.markov_rank:
            return lambda place, above, path: best(moved(place, above))
        scores, tokens = map(by_place, best(logits))
        wide = lambda x, above: jnp.broadcast_to(x, (*above.shape, self.top_k))  # noqa: E731
        return lambda place, above, path: (wide(scores[place], above), wide(tokens[place], above))
