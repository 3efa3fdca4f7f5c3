"""Defines early exits: blocks and a norm after a target's first layers, and the drafter that exits there.

state after layer E-1 -> block -> ... -> norm -> rows of the target's output head
"""

import dataclasses
from typing import Any, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import DEPTH, WIDTH, typed
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.heads import untrained
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import FeedForward, FeedForwardSpec
from jaxspec.nn.network import Network
from jaxspec.nn.norm import Norm
from jaxspec.ops.matmul import project


@dataclasses.dataclass(frozen=True)
class ExitConfig:
    """Sets the sizes of an early exit.

    Attributes:
      width: the size of the state.
      mlp_width: the inner width of every block.
      num_blocks: the number of blocks before the norm; each is a norm and a gated MLP, added to the state.
      norm: the kind of norm, which is the target's.
      norm_eps: the epsilon of norms.
    """

    width: int
    mlp_width: int
    num_blocks: int = 1
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5

    @property
    def block(self) -> FeedForwardSpec:
        """The feed-forward layer of each block."""
        return FeedForwardSpec(self.width, self.mlp_width)


class ExitNetwork(nn.Module):
    """Applies the blocks and the norm of an early exit."""

    config: ExitConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Returns the inputs of the output head."""
        config = self.config
        for i in range(config.num_blocks):
            x = x + FeedForward(config.block, self.dtype, name=f"block_{i}")(Norm(config, name=f"block_{i}_norm")(x))
        return Norm(config, name="final_norm")(x)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EarlyExitHead(Network):
    """Exits after some of a target's layers. `jaxspec.load_head` reads it; `EarlyExitDrafter` drafts with it.

    Attributes:
      module: the static network.
      params: its `params` collection; with a draft vocabulary, also `head`, those rows of the target's output head.
      layers: the number of layers before the exit.
      ids: its draft vocabulary, increasing; `None` uses the target's vocabulary and output head.
      placement: the layout of its parameters over a mesh; set by `jaxspec.shard`.

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
        """The size of the target's states."""
        return self.module.config.width

    def __call__(self, target: Any, hidden: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Computes logits over the draft vocabulary, float32.

        Args:
          target: the target, whose output head may be shared.
          hidden: the target's states after `layers` layers.
        """
        own = {name: part for name, part in self.params.items() if name != "head"}
        states = cast(Array, self.module.apply({"params": own}, hidden.astype(self.module.dtype)))
        head = self.params.get("head")
        logits = project(states.astype(target.dtype), target.head) if head is None else project(states, head)
        return logits.astype(jnp.float32)


@typed(layers=DEPTH, mlp_width=WIDTH, blocks=(0, 2**10))
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
    """Creates an untrained exit: blocks that add nothing yet, then the target's final norm and output head.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      layers: the number of the target's layers before the exit; `None` means a quarter of them.
      draft_vocabulary: how many of the most frequent tokens it can guess; `None` means all of them.
      mlp_width: the inner width of each block; `None` uses the target's.
      blocks: the number of blocks before the norm; with 0 there is only the norm.
      token_counts: how often each token occurs in texts, `int64[v]`; `None` means all equally often.
      dtype: the dtype of weights and activations; `None` uses the target's. Norms are float32.

    Returns:
      An `EarlyExitHead`, like those read from folders.

    Example:
      >>> from jaxspec.contrib import exit_head
      >>> head = exit_head.init(target, key, layers=2)
      >>> drafter = exit_head.KIND.drafter(head, k=3)
      >>> jaxspec.generate(target, drafter, prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype)
    layers = max(1, target.module.config.num_layers // 4) if layers is None else layers
    validate.integers("exit_head.init", layers=(layers, 1, target.module.config.num_layers))
    module = network_for(target, mlp_width, blocks)
    own = module.init(rng, jnp.zeros((1, 1, target.module.config.width), jnp.float32))["params"]
    silent = lambda path, x: jnp.zeros_like(x) if path[-2].key == "down" else x  # noqa: E731
    own = jax.tree.map_with_path(silent, own) | {"final_norm": untrained.final_norm(target)}
    ids, counts = None, untrained.known_counts(target, token_counts)
    if draft_vocabulary is not None:
        ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, counts))
        own["head"] = target.head[ids]
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    return EarlyExitHead(dataclasses.replace(module, dtype=dtype), untrained.in_dtype(own, dtype), layers, ids)


def network_for(target: LanguageModel, mlp_width: int | None, blocks: int) -> ExitNetwork:
    """Returns the network in float32 that fits a target; `mlp_width=None` uses the target's."""
    config = target.module.config
    sizes = ExitConfig(config.width, mlp_width or config.mlp_width, blocks, config.norm, config.norm_eps)
    return ExitNetwork(sizes, jnp.float32)


@typed("head")
def early_exit_drafter(head: EarlyExitHead, **options: Any) -> EarlyExitDrafter:
    """Returns the drafter that exits where `head` was trained to exit.

    Args:
      head: the exit.
      **options: the options of `EarlyExitDrafter`.

    Example:
      >>> from jaxspec.contrib import exit_head
      >>> exit_head.early_exit_drafter(exit_head.init(target, key, layers=2), k=3).layers
      2
    """
    return EarlyExitDrafter(head.layers, head=head, **options)
