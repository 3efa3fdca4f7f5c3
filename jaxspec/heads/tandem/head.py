"""`TandemHead`: a tandem decoder with its parameters and draft vocabulary, ready to draft from."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.heads.tandem.network import TandemConfig, TandemNetwork
from jaxspec.nn.cache import Entries, KVCache
from jaxspec.nn.language_model import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemHead(Network):
    """A small decoder that also attends to the target's states, made for one target (Tandem, 2402.08644).

    Attributes:
      module: the static network.
      params: its `params` collection, the target's rows of the output head among them.
      ids: the draft vocabulary: tokens of the target in rising order.
      vocab_size: the target's.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      placement: how its cache and logits are laid out over a mesh; `jaxspec.shard` sets it.
      cache_type: the class of its cache; `jaxspec.native_kernels` sets it.
    """

    module: TandemNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @property
    def config(self) -> TandemConfig:
        """The network's shape."""
        return self.module.config

    @property
    def context_length(self) -> int | None:
        """The longest text it can draft for."""
        return self.config.context_length

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache, with room for at least `capacity` tokens a row."""
        return self.empty_cache(self.config.num_layers, batch, capacity)

    def context(self, hidden: tuple[Float[Array, "b t f"], ...], start: Int[Array, "b"]) -> Entries:
        """What the cache must store of the target's states of tokens that stand from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply(hidden, positions, method="context")

    def __call__(
        self, embedded: Float[Array, "b t f"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], Entries]:
        """One pass over tokens behind those in the cache; `tree` are the options of `Model.__call__`.

        Args:
          embedded: the tokens' embeddings in the target.
          cache: the context, and drafts behind it.
        """
        return self._apply(embedded, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """The logits of the token that follows those that made `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """The same logits over the target's vocabulary."""
        return self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """The target's ids of tokens of the draft vocabulary."""
        return self.ids[places]

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)
