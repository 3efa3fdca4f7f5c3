"""An early exit with its weights: what a target's first layers guess through a norm and blocks of their own."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.contrib.exit_head.network import ExitNetwork
from jaxspec.core.model import Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.nn.language_model import Network
from jaxspec.ops.matmul import project


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EarlyExitHead(Network):
    """An exit after some of a target's layers. `jaxspec.load_head` reads it; `EarlyExitDrafter` drafts with it.

    Attributes:
      module: static.
      params: its `params` collection; with a draft vocabulary `head` too, those rows of the target's output head.
      layers: after how many layers it exits.
      ids: its draft vocabulary, rising; `None` is the target's own, with the target's own head.
      placement: how its parameters are laid out over a mesh; `jaxspec.shard` sets it.
    """

    module: ExitNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    layers: int = dataclasses.field(metadata={"static": True})
    ids: Int[Array, "n"] | None = None
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})

    def __call__(self, target: Any, hidden: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """The logits over the draft vocabulary, float32.

        Args:
          target: whose states these are, and whose head is shared.
          hidden: the states after `layers` layers.
        """
        own = {name: part for name, part in self.params.items() if name != "head"}
        states = self.module.apply({"params": own}, hidden.astype(self.module.dtype))
        head = self.params.get("head")
        logits = project(states.astype(target.dtype), target.head) if head is None else project(states, head)
        return logits.astype(jnp.float32)

    def over_vocabulary(self, logits: Float[Array, "*rows n"], vocab_size: int) -> Float[Array, "*rows v"]:
        """The same logits over the target's vocabulary."""
        return logits if self.ids is None else expand(logits, self.ids, vocab_size)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """The target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]
