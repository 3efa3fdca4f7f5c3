"""Defines `Edges`, the children of nodes in a block's tree, by the head's distribution given the path above.

no correction        one row a place, equal for all of its nodes
Markov, selector     a row for each token above
recurrent, Domino    a row for each path above: what the correction keeps goes down with the nodes
"""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.state import Context
from jaxspec.drafters.dynamic_tree import best_children
from jaxspec.drafters.processed import process_part
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.nn.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Edges:
    """Finds the best children of nodes, from one pass of a head.

    Attributes:
      head: the head; its correction is not parallel.
      context: the text.
      start: what the correction keeps before the first draft.
      states: the state of each place.
      logits: the logits of each place without correction.
    """

    head: DFlashHead
    context: Context
    start: Any
    states: Float[Array, "k b 1 d"]
    logits: Float[Array, "k b 1 n"]

    @classmethod
    def of(cls, head: DFlashHead, context: Context, states: Float[Array, "b m d"], places: int) -> "Edges":
        """Returns the edges of a block's first `places` places, given the states of all."""
        config = head.config
        known = states[:, -config.num_drafts :][:, :places]
        by_place = lambda x: jnp.swapaxes(x, 0, 1)[:, :, None]  # noqa: E731
        start = head.start(context.last, states[:, :1] if config.keeps_anchor else None)
        return cls(head, context, start, by_place(known), by_place(head.logits(known)))

    @property
    def places(self) -> int:
        """The number of places."""
        return self.states.shape[0]

    @property
    def most(self) -> int:
        """How many children a node can have."""
        return most_children(self.head)

    @property
    def alike(self) -> bool:
        """Whether all nodes of a place have the same children."""
        config = self.head.config
        return config.correction is None and not config.markov_rank and not self.context.processors

    def children(
        self, place: Int[Array, ""], tokens: Int[Array, "b w"], kept: Any, path: Int[Array, "b w k"] | None, count: int
    ) -> tuple[Float[Array, "b w_or_1 c"], Int[Array, "b w_or_1 c"], Any]:
        """Finds the best `count` children of nodes.

        Args:
          place: the number of the children's place.
          tokens: the nodes' tokens.
          kept: what the correction keeps above them.
          path: the paths down to the nodes, if a processor reads them.
          count: the number of children.

        Returns:
          Their log-probabilities in decreasing order and their tokens, for each node or for all that are `alike`; and
          what the correction keeps below each node.
        """
        head, logits = self.head, self.logits[place]
        config, ids = head.config, head.ids
        if self.alike:
            log_probs, best = best_children(jax.nn.log_softmax(logits), count)
            return log_probs, ids[best], kept
        wide = lambda x: jnp.broadcast_to(x, (*tokens.shape, x.shape[-1]))  # noqa: E731
        process = lambda x: process_part(self.context, x, path, head.over_vocabulary, ids)  # noqa: E731
        if config.correction is not None and config.correction.selects:
            # One search of the vocabulary for all nodes, unless each may be followed by other tokens.
            logits = process(wide(logits)) if self.context.processors else logits
            candidates, scores = head.candidates(tokens, self.states[place], logits)
            log_probs, best = best_children(jax.nn.log_softmax(scores), count)
            return log_probs, ids[jnp.take_along_axis(wide(candidates), best, axis=-1)], kept
        target = cast(LanguageModel, self.context.target)  # the drafter's `check` rejects others
        logits, kept = head.corrected(target, kept, place, tokens, wide(self.states[place]), wide(logits))
        log_probs, best = best_children(jax.nn.log_softmax(process(logits)), count)
        return log_probs, ids[best], kept


def most_children(head: DFlashHead) -> int:
    """Returns how many children a node can have in a tree of the head's drafts."""
    candidates = None if head.config.correction is None else head.config.correction.candidates
    return head.config.vocab_size if candidates is None else candidates
