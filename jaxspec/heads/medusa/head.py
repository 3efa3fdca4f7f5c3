"""Defines `MedusaHead`: Medusa's heads with their parameters and draft vocabulary; `init` makes untrained ones."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand, places
from jaxspec.heads import untrained
from jaxspec.heads.medusa.network import ConditionedConfig, ConditionedHeads, MedusaHeads
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MedusaHead(Network):
    """Applies all heads of one drafter. `jaxspec.load_head` reads them; `MedusaDrafter` drafts with them.

    Attributes:
      module: static: `jaxspec.heads.medusa.network.MedusaHeads`, the paper's, or `ConditionedHeads`.
      params: its `params` collection, with all that it takes from the target's output head.
      capture: which of the target's hidden states it reads: the last layer's output, `(num_layers,)`.
      ids: its draft vocabulary, rising; `None` is the target's own.
      accuracies: how often the token of rank `r` of head `i` was the target's, `[i][r]`, if that was measured;
        `jaxspec.core.tree.best_tree` makes a tree from it.
      placement: how its logits are laid out over a mesh; `jaxspec.shard` sets it.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.1.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=3)
      >>> isinstance(head, jaxspec.heads.MedusaHead), head.num_heads
      (True, 3)
    """

    module: MedusaHeads | ConditionedHeads = dataclasses.field(metadata={"static": True})
    params: Any
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    ids: Int[Array, "n"] | None = None
    accuracies: tuple[tuple[float, ...], ...] | None = dataclasses.field(default=None, metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})

    @property
    def num_heads(self) -> int:
        """The number of tokens that are guessed."""
        return self.module.config.num_heads

    def __call__(
        self, target: Any, hidden: Float[Array, "b t d"], tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t k n"]:
        """Returns the logits of the guesses over the draft vocabulary, float32.

        Args:
          target: whose states these are; it normalizes them, and embeds the tokens.
          hidden: states of `capture`.
          tokens: the token after each of them.
        """
        dtype = self.module.dtype
        states = target.normalize(hidden).astype(dtype)
        logits: Any = self.module.apply({"params": self.params}, states, target.embed(tokens).astype(dtype))
        return logits

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Returns the target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]

    def places(self, tokens: Int[Array, "*any"], vocab_size: int) -> Int[Array, "*any"]:
        """Returns where the target's tokens stand in the draft vocabulary; -1 where they do not."""
        return tokens if self.ids is None else places(self.ids, vocab_size)[tokens]

    def over_vocabulary(self, logits: Float[Array, "*rows n"], vocab_size: int) -> Float[Array, "*rows v"]:
        """Expands logits to the target's vocabulary."""
        return logits if self.ids is None else expand(logits, self.ids, vocab_size)


def init(
    target: LanguageModel,
    rng: Array,
    *,
    num_heads: int = 4,
    draft_vocabulary: int | None = None,
    mlp_width: int | None = None,
    shared_blocks: int = 2,
    num_blocks: int = 1,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> MedusaHead:
    """Makes untrained Medusa heads that also read the last token, from which training begins.

    Each block adds nothing at first, as the paper's do: the heads begin as the target's own output head.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      num_heads: how many tokens are guessed.
      draft_vocabulary: how many tokens they may guess, the most frequent; `None` is all of them.
      mlp_width: inner width of each block; `None` is four thirds of the target's width.
      shared_blocks: blocks before the heads part.
      num_blocks: blocks of each head.
      token_counts: `int64[v]`, how often each token stands in texts; `None` takes all as equally frequent.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Returns:
      Heads of `ConditionedHeads`, as the reader of their folder would return them.

    Raises:
      ValueError: a number is out of range.

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.1.

    Example:
      >>> head = jaxspec.heads.medusa.init(target, key, num_heads=2)
      >>> jaxspec.generate(target, jaxspec.MedusaDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    ids = untrained.draft_vocabulary(target, draft_vocabulary, token_counts)
    module = network_for(target, len(ids), num_heads, mlp_width, shared_blocks, num_blocks)
    state = jnp.zeros((1, 1, target.module.config.width))
    params = untrained.initial(module, rng, state, state)
    silent = lambda path, x: jnp.zeros_like(x) if path[-2].key == "down" else x  # noqa: E731
    params = jax.tree.map_with_path(silent, params) | {"output": {"head": target.head[jnp.asarray(ids)]}}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    module, every = dataclasses.replace(module, dtype=dtype), len(ids) == target.vocab_size
    capture = (target.module.config.num_layers,)
    return MedusaHead(module, untrained.in_dtype(params, dtype), capture, None if every else jnp.asarray(ids))


def network_for(
    target: LanguageModel, vocab_size: int, num_heads: int, mlp_width: int | None, shared_blocks: int, num_blocks: int
) -> ConditionedHeads:
    """Returns the network in float32 that fits a target; `mlp_width=None` is four thirds of the target's width."""
    config = target.module.config
    sizes = ConditionedConfig(
        width=config.width,
        vocab_size=vocab_size,
        num_heads=num_heads,
        mlp_width=mlp_width or 4 * config.width // 3,
        shared_blocks=shared_blocks,
        num_blocks=num_blocks,
        norm_eps=config.norm_eps,
    )
    return ConditionedHeads(sizes)
