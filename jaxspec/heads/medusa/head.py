"""Medusa's heads with their weights: what they guess after a text whose newest state is known."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand, places
from jaxspec.heads.medusa.network import ConditionedHeads, MedusaHeads
from jaxspec.nn.language_model import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaHead(Network):
    """All heads of one drafter. `jaxspec.load_head` reads them; `MedusaDrafter` drafts with them.

    Attributes:
      module: static: `jaxspec.heads.medusa.network.MedusaHeads`, the paper's, or `ConditionedHeads`.
      params: its `params` collection, with all that it takes from the target's output head.
      capture: which of the target's hidden states it reads: the last layer's output, `(num_layers,)`.
      ids: its draft vocabulary, rising; `None` is the target's own.
      accuracies: how often the token of rank `r` of head `i` was the target's, `[i][r]`, if that was
        measured; `jaxspec.core.tree.best_tree` makes a tree of it.
      placement: how its logits are laid out over a mesh; `jaxspec.shard` sets it.
    """

    module: MedusaHeads | ConditionedHeads = dataclasses.field(metadata={"static": True})
    params: Any
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    ids: Int[Array, "n"] | None = None
    accuracies: tuple[tuple[float, ...], ...] | None = dataclasses.field(default=None, metadata={"static": True})
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})

    @property
    def num_heads(self) -> int:
        """How many tokens are guessed."""
        return self.module.config.num_heads

    def __call__(
        self, target: Any, hidden: Float[Array, "b t d"], tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t k n"]:
        """The logits of the guesses over the draft vocabulary, float32.

        Args:
          target: whose states these are; it normalizes them, and embeds the tokens.
          hidden: states of `capture`.
          tokens: the token after each of them.
        """
        dtype = self.module.dtype
        states = target.normalize(hidden).astype(dtype)
        return self.module.apply({"params": self.params}, states, target.embed(tokens).astype(dtype))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """The target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]

    def places(self, tokens: Int[Array, "*any"], vocab_size: int) -> Int[Array, "*any"]:
        """Where the target's tokens stand in the draft vocabulary; -1 where they do not."""
        return tokens if self.ids is None else places(self.ids, vocab_size)[tokens]

    def over_vocabulary(self, logits: Float[Array, "*rows n"], vocab_size: int) -> Float[Array, "*rows v"]:
        """The same logits over the target's vocabulary."""
        return logits if self.ids is None else expand(logits, self.ids, vocab_size)
