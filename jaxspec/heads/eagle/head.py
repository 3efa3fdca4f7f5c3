"""Defines `EagleHead`: EAGLE's layer or a multi-token prediction module with its parameters."""

import dataclasses
import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.draft_model import Draft
from jaxspec.drafters.draft_vocabulary import expand
from jaxspec.heads import untrained
from jaxspec.heads.eagle.network import EagleLayer
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network

_Head = TypeVar("_Head", bound="EagleHead")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EagleHead(Network):
    """Applies one decoder layer to the target's states and embeddings: EAGLE-1, EAGLE-3 or multi-token prediction.

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

    References:
      EAGLE-1: Li et al. (2024), arXiv:2401.15077.
      EAGLE-3: Li et al. (2025), arXiv:2503.01840.
      DeepSeek-V3 (2024), arXiv:2412.19437, section 2.2.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key, draft_vocabulary=100)
      >>> isinstance(head, jaxspec.heads.EagleHead), head.ids.shape
      (True, (100,))
    """

    module: Any = dataclasses.field(metadata={"static": True})
    params: Any
    ids: Int[Array, "n"] | None
    embedding: Float[Array, "v d"] | None
    vocab_size: int = dataclasses.field(metadata={"static": True})
    capture: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(default=False, metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
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
        """Makes an empty cache of its layers."""
        return self.empty_cache(self.module.config.num_layers, batch, capacity)

    def features(self, target: Any, hidden: tuple[Float[Array, "b t d"], ...]) -> Float[Array, "b t f"]:
        """Concatenates the captured states, as they wait until the layer reads them."""
        if self.normalized:
            hidden = tuple(target.normalize(x) for x in hidden)
        return jnp.concatenate(hidden, axis=-1).astype(self.dtype)

    def fuse(self, features: Float[Array, "b t f"]) -> Float[Array, "b t d"]:
        """Projects them to the width of the layer."""
        return self._apply(features, method="fuse")

    def embed(self, target: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Embeds tokens as the layer takes them."""
        if self.embedding is not None:
            return self.embedding[tokens]
        return target.embed(tokens).astype(self.dtype)

    def __call__(
        self, embedded: Float[Array, "b t d"], states: Float[Array, "b t d"], cache: KVCache, **tree: Any
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        """Runs one pass; `tree` are the options of `Model.__call__`. Row `i` reads token `i + 1` and state `i`."""
        return self._apply(embedded, states, cache, **tree)

    def guesses(self, states: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns the logits of the token after those of `states`, over the draft vocabulary."""
        return self.placement.logits(self._apply(states, method="logits"))

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Expands logits to the target's vocabulary."""
        return logits if self.ids is None else self.placement.logits(expand(logits, self.ids, self.vocab_size))

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Returns the target's ids of tokens of the draft vocabulary."""
        return places if self.ids is None else self.ids[places]

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        """Returns what its drafts take: a pass each."""
        return model.layer(self, k)

    def as_draft(self, k: int) -> Draft:
        """Returns what chains and trees of up to `k` tokens along a path are drawn from."""
        from jaxspec.heads.eagle.drafter import EagleDraft  # which imports this module

        return EagleDraft(self, k)

    def _apply(self, *args: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *args, **options)


def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    num_kv_heads: int | None = None,
    mlp_width: int | None = None,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> EagleHead:
    """Makes an untrained EAGLE-3 head, from which training begins.

    Its fused state begins as the highest captured state of the target, and its output head is the target's.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      capture: the target's hidden states that it reads; `None` is a low, a middle and a high one.
      draft_vocabulary: how many tokens it may guess, the most frequent; `None` is all of them.
      num_kv_heads: key-value heads of the layer; `None` is the target's number.
      mlp_width: inner width of its feed-forward block; `None` is the target's.
      token_counts: `int64[v]`, how often each token stands in texts; `None` takes all as equally frequent.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Returns:
      A head of an `EagleLayer`, as the reader of its folder would return it.

    Raises:
      ValueError: a number is out of range.

    References:
      EAGLE-3: Li et al. (2025), arXiv:2503.01840, section 3.1.

    Example:
      >>> head = jaxspec.heads.eagle.init(target, key, draft_vocabulary=100)
      >>> jaxspec.generate(target, jaxspec.EagleDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    capture = default_capture(target) if capture is None else capture
    counts = untrained.known_counts(target, token_counts)
    ids = untrained.draft_vocabulary(target, draft_vocabulary, counts)
    module = layer_for(target, capture, len(ids), num_kv_heads, mlp_width)
    blank = EagleHead(module, {}, None, None, target.vocab_size, capture)
    return start(blank, target, rng, ids, counts, dtype)


def start(
    blank: _Head, target: LanguageModel, rng: Array, ids: np.ndarray, counts: np.ndarray, dtype: DTypeLike | None
) -> _Head:
    """Returns a head with the parameters that training begins with.

    Args:
      blank: the head without them.
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      ids: the draft vocabulary.
      counts: how often each of the target's tokens stands in texts.
      dtype: of weights and activations; `None` is the target's.
    """
    module, capture, width = blank.module, blank.capture, blank.module.config.width
    state, features = jnp.zeros((1, 1, width)), jnp.zeros((1, 1, module.features))
    params = untrained.initial(module, rng, state, features, blank.init_cache(1, 1), method="everything")
    frequent = jnp.asarray(np.argsort(-counts)[None, :64])
    # The fused state begins as the highest of those captured, of length 1 as the layer's own outputs, and is read as
    # the target's last is, but by far less sure.
    fuse = params["fuse"]["kernel"].at[:, -width:].add(jnp.eye(width))
    params["fuse"] = {"kernel": fuse / jnp.repeat(_state_lengths(target, capture, frequent), width)[None]}
    params["final_norm"] = {"scale": 0.5 * jnp.asarray(target.params["final_norm"]["scale"], jnp.float32)}
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    params = untrained.in_dtype(params | {"head": target.head[jnp.asarray(ids)]}, dtype)
    every = len(ids) == target.vocab_size
    module = dataclasses.replace(module, dtype=dtype)
    return dataclasses.replace(blank, module=module, params=params, ids=None if every else jnp.asarray(ids))


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns the states that EAGLE-3 reads of a target: the second, the middle and the third from the end."""
    layers = target.module.config.num_layers
    return tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 0)}))


def layer_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    num_kv_heads: int | None = None,
    mlp_width: int | None = None,
) -> EagleLayer:
    """Returns EAGLE-3's layer in float32, in the sizes of a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: how many tokens it may guess.
      num_kv_heads: key-value heads; `None` is the target's number.
      mlp_width: inner width of the feed-forward block; `None` is the target's.
    """
    config = target.module.config
    layer = TransformerConfig(
        vocab_size=vocab_size,
        num_layers=1,
        width=config.width,
        num_heads=config.num_heads,
        num_kv_heads=num_kv_heads or config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=mlp_width or config.mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),),
        windows=(None,),
        norm_eps=config.norm_eps,
        activation=config.activation,
    )
    return EagleLayer(layer, len(capture) * config.width)


@functools.partial(jax.jit, static_argnames="capture")
def _state_lengths(target: LanguageModel, capture: tuple[int, ...], tokens: Int[Array, "1 n"]) -> Float[Array, "s"]:
    """Measures the captured states' root mean squares, medians over tokens: those of most targets are long."""
    hidden = target(tokens, target.init_cache(1, 0), capture=capture).hidden
    return jnp.stack([jnp.median(jnp.sqrt(jnp.mean(x.astype(jnp.float32) ** 2, axis=-1))) for x in hidden])
