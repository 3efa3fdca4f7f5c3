"""`EagleHead`: EAGLE's trained layer, or a module that predicts further tokens, ready to draft from."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.nn.cache import Entries, KVCache
from jaxspec.nn.language_model import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleHead(Network):
    """One decoder layer over the target's states and embeddings.

    EAGLE's (2401.15077), EAGLE-3's (2503.01840), or a multi-token prediction module (DeepSeek-V3, 2412.19437).

    Attributes:
      module: a layer of `jaxspec.heads.eagle.network`, or a `jaxspec.heads.eagle.mtp.MtpLayer`.
      params: its parameters.
      ids: the draft vocabulary, rising ids of the target's; `None` is all of it.
      embedding: `[v, d]`, its own; `None` is the target's.
      vocab_size: the target's.
      capture: the target's hidden states that it reads: `i` enters layer `i`.
      normalized: whether the target's final norm comes before the head reads a state, as in EAGLE-1 and MTP.
      placement: how its cache and logits are laid out over a mesh; `jaxspec.shard` sets it.
      cache_type: the class of its cache; `jaxspec.native_kernels` sets it.
    """

    module: Any = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"] | None
    embedding: Float[Array, "v d"] | None
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(default=False, metadata={"static": True})
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @property
    def context_length(self) -> int | None:
        """The longest text it can draft for."""
        return self.module.config.context_length

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights and activations."""
        return jnp.dtype(self.module.dtype)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache of its one layer."""
        return self.empty_cache(1, batch, capacity)

    def features(self, target: Any, hidden: tuple[Float[Array, "b t d"], ...]) -> Float[Array, "b t f"]:
        """The captured states side by side, as they are kept until the layer reads them."""
        if self.normalized:
            hidden = tuple(target.normalize(x) for x in hidden)
        return jnp.concatenate(hidden, axis=-1).astype(self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """The states as the layer takes them."""
        return self._apply(features, method="fuse")

    def embed(self, target: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Embeddings as the layer takes them."""
        if self.embedding is not None:
            return self.embedding[tokens]
        return target.embed(tokens).astype(self.dtype)

    def __call__(
        self, embedded: Float[Array, "b t d"], states: Float[Array, "b t d"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], Entries]:
        """One pass; `tree` are the options of `Model.__call__`. Row `i` reads token `i + 1` and state `i`."""
        return self._apply(embedded, states, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """The logits of the token that follows those that made `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """The same logits over the target's vocabulary."""
        return logits if self.ids is None else self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """The target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)
