"""`LanguageModel`: a Flax decoder and its parameters, as the loop's `Model`."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import ModelOutput, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn import partial as passes
from jaxspec.nn.cache import KVCache
from jaxspec.nn.partial import Partial as Partial
from jaxspec.nn.transformer import Norm, Transformer, embed
from jaxspec.ops.packed import PackedWeight


class Network:
    """A Flax module with its parameters and where they lie: a whole model, or a head on one.

    `jaxspec.shard` splits the parameters of each by their names.

    Attributes:
      module: static; `module.config` is a `TransformerConfig`, or has one's fields for the sizes to split.
      params: its `params` collection.
      placement: how its caches and logits are laid out over a mesh.
      cache_type: the class of its caches.
    """

    module: nn.Module
    params: Any
    placement: Any
    cache_type: type[KVCache] = KVCache

    def empty_cache(self, layers: int, batch: int, capacity: int) -> KVCache:
        """A cache of so many of its layers, laid out as its placement says."""
        config = self.module.config
        empty = self.cache_type.empty(
            layers=layers,
            batch=batch,
            heads=config.num_kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            dtype=jnp.dtype(self.module.dtype),
        )
        return self.placement.cache(empty)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LanguageModel(Network):
    """A Flax Linen decoder and its parameters, as a `Model`.

    Attributes:
      module: the static module: a `jaxspec.nn.Transformer`, or any Linen module with the same
        call signature whose `config` has the same fields.
      params: its `params` collection.
      tokenizer: the `jaxspec.Tokenizer` of its vocabulary, where there is one.
      placement: how its caches and logits are laid out over a mesh; `jaxspec.shard` sets it.
      cache_type: the class of its caches: `KVCache`, `Int8KVCache` (`jaxspec.quantize_cache` sets it), or
        `NativeKVCache` (`jaxspec.native_kernels`).
    """

    module: nn.Module = dataclasses.field(metadata={"static": True})
    params: Any
    tokenizer: Any = dataclasses.field(default=None, metadata={"static": True})
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.module.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.module.config.context_length

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights and activations."""
        return jnp.dtype(self.module.dtype)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        return self.empty_cache(self.module.config.num_layers, batch, capacity)

    def __call__(self, tokens, cache, *, mask=None, positions=None, capture=(), pending=None) -> ModelOutput:
        options = {"mask": mask, "positions": positions, "capture": capture}
        if pending is not None:
            options["pending"] = pending
        logits, entries, hidden = self.module.apply({"params": self.params}, tokens, cache, **options)
        return ModelOutput(self.placement.logits(logits), entries, hidden)

    def begin(
        self,
        tokens: Int[Array, "b t"],
        cache: KVCache,
        layers: int,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        pending: Any = None,
    ) -> tuple[Float[Array, "b t v"], Partial]:
        """A pass that stops after its first `layers`, which a `jaxspec.nn.Transformer` can.

        Returns:
          What final norm and head make of the state there, `[b, t, v]` float32, and what `resume` takes.
        """
        options = {"mask": mask, "positions": positions, "pending": pending}
        logits, partial = passes.begin(self.module, self.params, tokens, cache, layers, **options)
        return self.placement.logits(logits), partial

    def resume(
        self,
        partial: Partial,
        cache: KVCache,
        *,
        mask: Bool[Array, "b t t"] | None = None,
        positions: Int[Array, "b t"] | None = None,
        capture: tuple[int, ...] = (),
    ) -> ModelOutput:
        """What a call would return for the tokens that `partial` was begun with, by running only the other layers.

        Raises:
          ValueError: `capture` names states, which are gone.
        """
        if capture:
            raise ValueError(f"a resumed pass has no captured states, got capture={capture}; run it from the start")
        logits, entries = passes.resume(self.module, self.params, partial, cache, mask=mask, positions=positions)
        return ModelOutput(self.placement.logits(logits), entries)

    @property
    def resumes(self) -> bool:
        """Whether it has `begin` and `resume`."""
        return isinstance(self.module, Transformer)

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """What enters the first layer, learned positions left out: for drafters that share the embedding."""
        return embed(self.module.config, self.params, tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """The last layer's output (`capture=(num_layers,)`) as the output head takes it."""
        return Norm(self.module.config).apply({"params": self.params["final_norm"]}, hidden)

    @property
    def head(self) -> Float[Array, "v d"] | PackedWeight:
        """The output head: `jaxspec.ops.matmul.project(normalized, head)` are the logits."""
        return self.params["embedding" if self.module.config.tied_head else "head"]
