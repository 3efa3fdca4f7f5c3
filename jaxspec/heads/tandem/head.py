"""Defines `TandemHead`: a tandem decoder with its parameters and draft vocabulary; `init` makes an untrained one."""

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
from jaxspec.drafters.draft_model import Draft
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.heads import untrained
from jaxspec.heads.tandem.network import TandemConfig, TandemNetwork
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemHead(Network):
    """Decodes with a small model that also attends to the target's states, made for one target.

    Attributes:
      module: the static network.
      params: its `params` collection, the target's rows of the output head among them.
      ids: the draft vocabulary: tokens of the target in rising order.
      vocab_size: the target's.
      capture: the target's hidden states that it reads, in this order (`i` enters layer `i`).
      placement: how its cache and logits are laid out over a mesh; `jaxspec.shard` sets it.
      cache_type: the class of its cache; `jaxspec.native_kernels` sets it.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.heads.tandem.init(target, key, layers=1, heads=2)
      >>> isinstance(head, jaxspec.heads.TandemHead), head.config.num_layers
      (True, 1)
    """

    module: TandemNetwork = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"]
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
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
        """Makes an empty cache, with room for at least `capacity` tokens a row."""
        return self.empty_cache(self.config.num_layers, batch, capacity)

    def context(self, hidden: tuple[Float[Array, "b t f"], ...], start: Int[Array, "b"]) -> KVEntries:
        """Returns what the cache stores of the target's states of tokens that stand from `start` on."""
        positions = start[:, None] + jnp.arange(hidden[0].shape[1], dtype=jnp.int32)[None]
        return self._apply(hidden, positions, method="context")

    def __call__(
        self, embedded: Float[Array, "b t f"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        """Runs one pass over tokens after those in the cache; `tree` are the options of `Model.__call__`.

        Args:
          embedded: the tokens' embeddings in the target.
          cache: the context, and drafts after it.
        """
        return self._apply(embedded, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns the logits of the token after those of `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Returns the target's ids of tokens of the draft vocabulary."""
        return self.ids[places]

    def as_draft(self, k: int) -> Draft:
        """Returns what chains and trees of up to `k` tokens along a path are drawn from."""
        from jaxspec.heads.tandem.drafter import TandemDraft  # which imports this module

        return TandemDraft(self)

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)


def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    width: int | None = None,
    layers: int = 3,
    heads: int = 4,
    mlp_width: int = 768,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> TandemHead:
    """Makes an untrained tandem decoder, from which training begins.

    It begins by reading and predicting what differs most among tokens: the directions in which the target's embedding
    and output head are longest.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      capture: the target's hidden states that it reads; `None` is a low, the middle and the last one.
      draft_vocabulary: how many tokens it may guess, the most frequent; `None` is all of them.
      width: of its residual stream, an even number for each attention head; `None` is 256, or the target's if less.
      layers: how many.
      heads: of attention, each with keys and values of its own.
      mlp_width: inner width of its feed-forward blocks.
      token_counts: `int64[v]`, how often each token stands in texts; `None` takes all as equally frequent.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Returns:
      A decoder as the reader of its folder would return it.

    Raises:
      ValueError: a number is out of range, or `width` is more than the target's.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.heads.tandem.init(target, key, layers=1, heads=2)
      >>> jaxspec.generate(target, jaxspec.TandemDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    capture, own = default_capture(target) if capture is None else capture, target.module.config.width
    counts = untrained.known_counts(target, token_counts)
    ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, counts))
    width = min(256, own) if width is None else width
    if width > own:
        raise ValueError(
            f"width must be at most the target's {own}, of whose embedding this decoder's is a projection, got {width}"
        )
    module = network_for(
        target, capture, ids.shape[0], width=width, layers=layers, heads=heads, mlp_width=mlp_width, dtype=jnp.float32
    )
    blank = TandemHead(module, {}, jnp.zeros(0, jnp.int32), target.vocab_size, capture)
    params = jax.jit(lambda key: module.init(key, blank.init_cache(1, 1), method="everything"))(rng)["params"]
    # Logits begin with a spread of 1: as long a state as the target's would be sure of anything.
    scale = jnp.asarray(target.params["final_norm"]["scale"], jnp.float32)
    rows = np.asarray(target.head[jnp.arange(target.vocab_size)], np.float32) * np.asarray(scale)
    embedding = np.asarray(target.embed(jnp.arange(target.vocab_size)[None])[0], np.float32)
    lift = _directions(rows, counts, width)
    spread = np.sqrt(own * np.mean(((rows - rows.mean(axis=0)) @ np.asarray(lift).T) ** 2))
    params["lower"] = {"kernel": _directions(embedding, counts, width)}
    params["lift"], params["final_norm"] = {"kernel": lift.T}, {"scale": scale / float(spread)}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    params = untrained.in_dtype(params | {"head": target.head[ids]}, dtype)
    return TandemHead(dataclasses.replace(module, dtype=dtype), params, ids, target.vocab_size, capture)


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns states from low, middle and high in the target, the last layer's output among them."""
    layers = target.module.config.num_layers
    return tuple(sorted({min(2, layers), layers // 2, layers}))


def network_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    *,
    width: int,
    layers: int,
    heads: int,
    mlp_width: int,
    dtype: DTypeLike,
) -> TandemNetwork:
    """Returns the network that fits a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: how many tokens it may guess.
      width: of its residual stream.
      layers: how many.
      heads: of attention.
      mlp_width: inner width of its feed-forward blocks.
      dtype: of weights and activations.
    """
    config = target.module.config
    shape = TandemConfig(
        vocab_size=vocab_size,
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        mlp_width=mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),) * layers,
        windows=(None,) * layers,
        norm_eps=config.norm_eps,
        activation=config.activation,
        target_width=config.width,
        num_features=len(capture),
    )
    return TandemNetwork(shape, jnp.dtype(dtype))


def _directions(rows: np.ndarray, token_counts: np.ndarray, width: int) -> Float[Array, "w d"]:
    """Finds the directions in which rows of a table differ most, frequent tokens counted more: of length 1 each."""
    weights = token_counts.astype(np.float32) + 1
    weighted = (rows - np.average(rows, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    _, vectors = np.linalg.eigh(weighted.T @ weighted)
    return jnp.asarray(vectors[:, ::-1][:, :width].T, jnp.float32)
