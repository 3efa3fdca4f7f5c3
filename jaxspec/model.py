"""What the loop needs of a language model, and `LanguageModel`, which gives it to a Flax module.

A model is a pytree: its arrays are leaves, everything else is static, so it goes through
`jax.jit`, `jax.vmap` and `lax.scan` as an argument.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.cache import Cache, KVCache
from jaxspec.nn import partial as passes
from jaxspec.nn.kernels import StoredKernel
from jaxspec.nn.partial import Partial as Partial
from jaxspec.nn.transformer import Norm, Transformer, embed
from jaxspec.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """What one forward pass returns.

    Attributes:
      logits: `[b, t, v]` float32; row `i` is the law of the token after fed token `i`.
      entries: what the cache must store of the fed tokens (`cache.append(entries)`).
      hidden: the captured states, `[b, t, d]` each, in the order of `capture`.
    """

    logits: Float[Array, "b t v"]
    entries: Any
    hidden: tuple[Float[Array, "b t d"], ...] = ()


@runtime_checkable
class Model(Protocol):
    """A causal language model over a cache that the caller holds.

    A call does not write the cache: it returns entries, and `cache.append` stores them. So a
    forward pass may stand inside a `lax.cond` or `lax.switch` without copying the cache, and
    rejected tokens need never be stored.

    Attributes:
      vocab_size: how many token ids there are.
      context_length: the longest sequence the model takes; `None` if it has no bound.
    """

    vocab_size: int
    context_length: int | None

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache with room for at least `capacity` tokens a row."""

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Cache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        """Scores fresh tokens that follow the cached ones.

        Args:
          tokens: the fed tokens.
          cache: the history; row `b` holds `cache.length[b]` tokens.
          mask: which fed token sees which, for trees; `None` is causal. Every fed token sees
            the whole history.
          positions: the fed tokens' positions; `None` counts on from the history.
          capture: which hidden states to return: `i` is the state entering layer `i`.
          pending: entries of `u - t` tokens that were fed before and are in no cache, such as
            the upper levels of a tree. `mask` and `positions` must then be given, and speak of
            the pending tokens first. A model that is never asked to grow a tree may do without.
        """


@dataclasses.dataclass(frozen=True)
class Anywhere:
    """No placement: arrays lie where JAX puts them. `jaxspec.sharding.Placement` is the other kind."""

    def cache(self, cache: Any) -> Any:
        """A cache, laid out as its model is."""
        return cache

    def logits(self, logits: Array) -> Array:
        """`[b, t, v]`, laid out as the output head is."""
        return logits

    def rows(self, tree: Any) -> Any:
        """Arrays that have the batch first."""
        return tree

    def everywhere(self, tree: Any) -> Any:
        """Arrays that every device has."""
        return tree

    def check_same(self, parts: dict[str, Any], number: int = 0) -> int:
        """Raises unless all processes pass the same, and returns the first one's number; here there is one."""
        return number


def placement_of(model: Any) -> Any:
    """A model's placement; one that knows of none lies anywhere."""
    return getattr(model, "placement", Anywhere())


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
      cache_type: the class of its caches: `KVCache`, `Int8KVCache` (`jaxspec.quantise_cache` sets it), or
        `NativeKVCache` (`jaxspec.native_products`).
    """

    module: nn.Module = dataclasses.field(metadata={"static": True})
    params: Any
    tokenizer: Any = dataclasses.field(default=None, metadata={"static": True})
    placement: Any = dataclasses.field(default=Anywhere(), metadata={"static": True})
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

    def normalise(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """The last layer's output (`capture=(num_layers,)`) as the output head takes it."""
        return Norm(self.module.config).apply({"params": self.params["final_norm"]}, hidden)

    @property
    def head(self) -> Float[Array, "v d"] | StoredKernel:
        """The output head: `jaxspec.nn.products.project(normalised, head)` are the logits."""
        return self.params["embedding" if self.module.config.tied_head else "head"]
