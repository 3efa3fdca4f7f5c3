"""The network of a block drafter with its parameters and draft vocabulary: what `DFlashDrafter` runs."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.draft_vocabulary import places
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.nn.cache import Entries, KVCache
from jaxspec.nn.language_model import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlashHead(Network):
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
      cache_type: the class of its cache; `jaxspec.native_kernels` sets it.
    """

    module: DFlashNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    places: Int[Array, "v"]
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    confidence_scale: Float[Array, "k"] | None = None
    placement: Any = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})

    @classmethod
    def of(cls, module: DFlashNetwork, params: Any, ids: Any, capture: tuple[int, ...], vocab_size: int) -> Self:
        """One for a target with `vocab_size` tokens, of which `ids` (rising, `int[n]`) can be guessed."""
        ids = jnp.asarray(ids, jnp.int32)
        return cls(module, params, ids, places(ids, vocab_size), capture)

    @property
    def config(self) -> DFlashConfig:
        """The network's shape."""
        return self.module.config

    @property
    def vocab_size(self) -> int:
        """How many tokens the target has."""
        return self.places.shape[0]

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache of context, with room for at least `capacity` tokens a row."""
        return self.empty_cache(self.config.num_layers, batch, capacity)

    def context(self, hidden: tuple[Float[Array, "b t d"], ...], start: Int[Array, "b"]) -> Entries:
        """What the cache must store of the target's states of tokens that stand from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply("context", hidden, positions)

    def blocks(
        self, anchors: Float[Array, "b a d"], positions: Int[Array, "b a"], seen: KVCache | Entries
    ) -> Float[Array, "b a n d"]:
        """What each place of each block knows of the token that it predicts.

        Args:
          anchors: the embeddings of the tokens that the blocks begin with.
          positions: where those stand.
          seen: a cache of context, all of which each block sees; or the context of a text's first tokens, of which
            each block sees those before it.
        """
        where = {"cache": seen} if isinstance(seen, KVCache) else {"context": seen}
        return self._apply("__call__", anchors, positions, **where)

    def logits(self, known: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Over the draft vocabulary, what the token before adds left out; float32."""
        return self._apply("logits", known)

    def before(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t r"] | None:
        """What is known of the target's tokens that stand before drafts; `None` if nothing is."""
        return self._apply("before", self.places[tokens]) if self.config.markov_rank else None

    def added(self, before: Float[Array, "b t r"] | None) -> Float[Array, "b t n"] | float:
        """What that adds to the drafts' logits."""
        return 0.0 if before is None else self._apply("added", before)

    def odds(self, known: Float[Array, "b t d"], before: Float[Array, "b t r"] | None) -> Float[Array, "b t"]:
        """The estimated log-odds that a draft is accepted if those before it are, as they were learnt."""
        return self._apply("trusted", known, before)

    def log_trust(self, odds: Float[Array, "b"], offset: Int[Array, ""]) -> Float[Array, "b"]:
        """The logarithm of that probability for draft `offset`, calibrated."""
        return jax.nn.log_sigmoid(odds if self.confidence_scale is None else odds / self.confidence_scale[offset])

    def _apply(self, method: str, *arguments, **options):
        return self.module.apply({"params": self.params}, *arguments, method=method, **options)
