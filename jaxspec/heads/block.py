"""The network of a block drafter with its parameters and draft vocabulary: what `BlockDrafter` runs."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.cache import Entries, KVCache
from jaxspec.heads.vocabulary import places
from jaxspec.model import Anywhere, Network
from jaxspec.nn.block import BlockConfig, BlockNetwork


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockHead(Network):
    """A block drafter's network, made for one target.

    Attributes:
      module: the static network.
      params: its `params` collection, the target's rows of the output head among them.
      ids: the draft vocabulary: tokens of the target in rising order.
      places: where each of the target's tokens stands in it; -1 where it does not.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      confidence_scale: what the log-odds of each draft's acceptance are divided by (sequential temperature scaling,
        DSpark, section 3.2); `None` is 1.
      placement: how its cache is laid out over a mesh; `jaxspec.shard` sets it.
    """

    module: BlockNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    places: Int[Array, "v"]
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    confidence_scale: Float[Array, "k"] | None = None
    placement: Any = dataclasses.field(default=Anywhere(), metadata={"static": True})

    @classmethod
    def of(cls, module: BlockNetwork, params: Any, ids: Any, capture: tuple[int, ...], vocab_size: int) -> Self:
        """One for a target with `vocab_size` tokens, of which `ids` (rising, `int[n]`) can be guessed."""
        ids = jnp.asarray(ids, jnp.int32)
        return cls(module, params, ids, places(ids, vocab_size), capture)

    @property
    def config(self) -> BlockConfig:
        """The network's shape."""
        return self.module.config

    @property
    def vocab_size(self) -> int:
        """How many tokens the target has."""
        return self.places.shape[0]

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache of context, with room for at least `capacity` tokens a row."""
        config = self.config
        empty = KVCache.empty(
            layers=config.num_layers,
            batch=batch,
            heads=config.num_kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            dtype=jnp.dtype(self.module.dtype),
        )
        return self.placement.cache(empty)

    def context(self, hidden: tuple[Float[Array, "b t d"], ...], start: Int[Array, "b"]) -> Entries:
        """What the cache must store of the target's states of tokens that stand from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply("context", hidden, positions)

    def block(self, anchors: Float[Array, "b d"], cache: KVCache) -> Float[Array, "b n d"]:
        """What each place of a row's block knows of its token; the block follows the cached context."""
        return self._apply("__call__", anchors[:, None], cache.length[:, None], cache)[:, 0]

    def logits(self, known: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Over the draft vocabulary, what the token before adds left out."""
        return self._apply("logits", known)

    def before(self, token: Int[Array, "b"]) -> Float[Array, "b r"] | None:
        """What is known of the target's `token`, which stands before a draft; `None` if nothing is."""
        return self._apply("before", self.places[token][:, None])[:, 0] if self.config.markov_rank else None

    def added(self, before: Float[Array, "b r"] | None) -> Float[Array, "b n"] | float:
        """What that adds to the draft's logits."""
        return 0.0 if before is None else self._apply("added", before[:, None])[:, 0]

    def log_trust(
        self, known: Float[Array, "b d"], before: Float[Array, "b r"] | None, offset: Array
    ) -> Float[Array, "b"]:
        """The logarithm of the estimated probability that draft `offset` is accepted if those before it are."""
        before = None if before is None else before[:, None]
        odds = self._apply("trusted", known[:, None], before)[:, 0]
        scale = 1.0 if self.confidence_scale is None else self.confidence_scale[offset]
        return jax.nn.log_sigmoid(odds / scale)

    def _apply(self, method: str, *arguments):
        return self.module.apply({"params": self.params}, *arguments, method=method)
