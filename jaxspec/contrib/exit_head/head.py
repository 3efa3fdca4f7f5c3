"""Holds an early exit with its weights: blocks and a norm after a target's first layers."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.contrib.exit_head.network import ExitConfig, ExitNetwork
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.heads import untrained
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.ops.matmul import project


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EarlyExitHead(Network):
    """Exits after some of a target's layers. `jaxspec.load_head` reads it; `EarlyExitDrafter` drafts with it.

    Attributes:
      module: static.
      params: its `params` collection; with a draft vocabulary `head` too, those rows of the target's output head.
      layers: after how many layers it exits.
      ids: its draft vocabulary, rising; `None` is the target's own, with the target's own head.
      placement: how its parameters are laid out over a mesh; `jaxspec.shard` sets it.

    References:
      LayerSkip: Elhoushi et al. (2024), arXiv:2404.16710, section 4.3, where the whole model is trained instead.

    Example:
      >>> from jaxspec.contrib import exit_head
      >>> head = exit_head.init(target, key, layers=1)
      >>> isinstance(head, jaxspec.contrib.EarlyExitHead), head.layers
      (True, 1)
    """

    module: ExitNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    layers: int = dataclasses.field(metadata={"static": True})
    ids: Int[Array, "n"] | None = None
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})

    @property
    def width(self) -> int:
        """The width of the target's states."""
        return self.module.config.width

    @property
    def draft_vocab_size(self) -> int | None:
        """The number of tokens that it guesses; `None` is all of the target's."""
        return None if self.ids is None else self.ids.shape[0]

    def __call__(self, target: Any, hidden: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Computes the logits over the draft vocabulary, float32.

        Args:
          target: whose states these are, and whose head is shared.
          hidden: the states after `layers` layers.
        """
        own = {name: part for name, part in self.params.items() if name != "head"}
        states = cast(Array, self.module.apply({"params": own}, hidden.astype(self.module.dtype)))
        head = self.params.get("head")
        logits = project(states.astype(target.dtype), target.head) if head is None else project(states, head)
        return logits.astype(jnp.float32)

    def over_vocabulary(self, logits: Float[Array, "*rows n"], vocab_size: int) -> Float[Array, "*rows v"]:
        """Returns the same logits over the target's vocabulary."""
        return logits if self.ids is None else expand(logits, self.ids, vocab_size)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Returns the target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]


def init(
    target: LanguageModel,
    rng: Array,
    *,
    layers: int | None = None,
    draft_vocabulary: int | None = None,
    mlp_width: int | None = None,
    blocks: int = 1,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> EarlyExitHead:
    """Makes an untrained exit: the target's final norm and output head behind blocks that add nothing yet.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      layers: after how many of the target's layers it exits; `None` is a quarter of them.
      draft_vocabulary: how many tokens it may guess, the most frequent; `None` is all of them.
      mlp_width: inner width of each block; `None` is the target's.
      blocks: before the norm; 0 leaves the norm alone.
      token_counts: `int64[v]`, how often each token stands in texts; `None` takes all as equally frequent.
      dtype: of weights and activations; `None` is the target's. Norms are float32.

    Returns:
      An exit as the reader of its folder would return it.

    Example:
      >>> from jaxspec.contrib import exit_head
      >>> head = exit_head.init(target, key, layers=2)
      >>> drafter = exit_head.KIND.drafter(head, k=3)
      >>> jaxspec.generate(target, drafter, prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    layers = max(1, target.module.config.num_layers // 4) if layers is None else layers
    module = network_for(target, mlp_width, blocks)
    own = module.init(rng, jnp.zeros((1, 1, target.module.config.width)))["params"]
    silent = lambda path, x: jnp.zeros_like(x) if path[-2].key == "down" else x  # noqa: E731
    own = jax.tree.map_with_path(silent, own) | {"final_norm": dict(target.params["final_norm"])}
    ids = None
    if draft_vocabulary is not None:
        ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, token_counts))
        own["head"] = target.head[ids]
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    return EarlyExitHead(dataclasses.replace(module, dtype=dtype), untrained.in_dtype(own, dtype), layers, ids)


def network_for(target: LanguageModel, mlp_width: int | None, blocks: int) -> ExitNetwork:
    """Returns the network in float32 that fits a target; `mlp_width=None` is the target's."""
    config = target.module.config
    sizes = ExitConfig(config.width, mlp_width or config.mlp_width, blocks, config.norm, config.norm_eps)
    return ExitNetwork(sizes, jnp.float32)
