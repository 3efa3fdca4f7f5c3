"""Defines the layers of a transformer: specs, and the Flax modules that they build.

A layer is a mixer of tokens and a feed-forward block. Each kind of either is a spec and a module in one file. Only a
configuration chooses the kinds of its layers (`TransformerConfig.layers`):

    mixer          AttentionSpec, of all tokens or those in a window    -> Attention, over a KVCache
    feed-forward   FeedForwardSpec, gated or plain                      -> FeedForward
                   ExpertsSpec, a few of many experts for each token    -> Experts (`jaxspec.nn.experts`)

Layers with equal `Mixer.cache` share one cache, in which they are stacked; layers with equal specs have weights of
equal shapes, which can be stacked. Weights are stored as `[out, in]`, grouped by key-value head, so that mesh axes can
split them by head, and the queries of a head further:

    query       [g, r, head_dim, width]   r queries for each of g key-value heads
    key_value   [g, 2, head_dim, width]
    output      [width, g * r * head_dim]
    gate_up     [2, inner_width, width]
    down        [width, inner_width]
"""

import dataclasses
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.sums import rounded
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache, KVEntries, LayerNumber
from jaxspec.nn.cache_by_kind import CacheKind, KVKind
from jaxspec.nn.norm import Norm, NormOfSum, NormSpec, like
from jaxspec.ops.matmul import project
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.rope import Rope, RopeTable, rope_table, rotate

# The last names in the paths of the products' parameters, which are arrays or packed weights.
PRODUCTS = ("kernel", "embedding", "head")

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": jax.nn.gelu}

_init = nn.initializers.normal(0.02)


def weight(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "*out in"] | PackedWeight:
    """Returns a module's parameter `[*out, in]`, or creates it.

    Flax would compare the shape with that of the packed weight's first array; this compares it with the weight's.

    Args:
      module: the module, in `setup` or a compact method.
      name: the parameter's name.
      shape: the weight's shape.
      dtype: the dtype of a new weight.

    Raises:
      ValueError: a packed weight has another shape; for an array, Flax raises.
    """
    if module.has_variable("params", name):
        stored = module.get_variable("params", name)
        if isinstance(stored, PackedWeight):
            if stored.shape != shape:
                raise ValueError(f"the parameter {name} of {module.name} must have shape {shape}, got {stored.shape}")
            return stored
    return module.param(name, _init, shape, dtype)


def scaled(x: Float[Array, "*rows d"], factor: float) -> Float[Array, "*rows d"]:
    """Multiplies by a factor in float32, rounded once to the dtype of `x`; a factor of 1 changes nothing."""
    return x if factor == 1 else rounded((x.astype(jnp.float32) * factor).astype(x.dtype))


class Dense(nn.Module):
    """Multiplies by a kernel `[*out, in]`, and adds a bias `[*out]` if the family has one."""

    out: tuple[int, ...]
    bias: bool
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x):
        kernel = weight(self, "kernel", (*self.out, x.shape[-1]), self.dtype)
        y = project(x, kernel)
        if self.bias:
            y = y + like(self.param("bias", nn.initializers.zeros, self.out, self.dtype), y)
        return y


@runtime_checkable
class Mixer(Protocol):
    """Specifies the part of a layer that combines tokens. Hashable.

    Attributes:
      takes_trees: whether it can score a tree, in which a mask says what each fed token sees.
      rewinds: whether its cache rolls back to any length (`jaxspec.core.ModelTraits`).
    """

    takes_trees: ClassVar[bool]
    rewinds: ClassVar[bool]

    @property
    def cache(self) -> CacheKind:
        """The state of the text that it keeps; layers with equal kinds share a cache."""
        ...

    @property
    def rotary(self) -> tuple[int, Rope] | None:
        """The size of its heads and their rotary embedding, whose table is passed to its module."""
        ...

    def build(self, layer: LayerNumber, dtype: DTypeLike) -> nn.Module:
        """Returns the module, as a submodule of the caller.

        Args:
          layer: its index among the layers that share its cache.
          dtype: the dtype of weights and activations.
        """
        ...


@runtime_checkable
class FeedForwardKind(Protocol):
    """Specifies the part of a layer that computes on each token alone. Hashable."""

    def build(self, dtype: DTypeLike) -> nn.Module:
        """Returns the module, as a submodule of the caller."""
        ...


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Specifies a layer's attention.

    Attributes:
      width: the width of its output.
      num_kv_heads: the number of key-value heads.
      queries_per_kv_head: the number of query heads that share each of them.
      head_dim: the size of a head.
      scale: the factor of query-key products before the softmax.
      rope: the rotary embedding, or `None`.
      window: the number of positions that a token sees, itself included; `None` is all.
      norm: the norm of queries and keys, if `query_key_norm`.
      norm_all_heads: whether that is one norm over all heads, instead of one over each.
      clip: the largest magnitude of queries, keys and values; `None` is any.
      sinks: whether each query head has a sink: a learned score that takes weight in its softmax and adds no value.
    """

    width: int
    num_kv_heads: int
    queries_per_kv_head: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None
    norm: NormSpec
    qkv_bias: bool = False
    output_bias: bool = False
    query_key_norm: bool = False
    norm_all_heads: bool = False
    clip: float | None = None
    sinks: bool = False

    takes_trees: ClassVar[bool] = True
    rewinds: ClassVar[bool] = True

    @property
    def cache(self) -> KVKind:
        return KVKind(self.num_kv_heads, self.head_dim)

    @property
    def rotary(self) -> tuple[int, Rope] | None:
        return None if self.rope is None else (self.head_dim, self.rope)

    def build(self, layer: LayerNumber, dtype: DTypeLike) -> "Attention":
        return Attention(self, layer, dtype, name="attention")


@dataclasses.dataclass(frozen=True)
class FeedForwardSpec:
    """Specifies a layer's feed-forward block: gated (SwiGLU, GeGLU) or plain.

    Attributes:
      width: the width of its input and output.
      inner_width: the width between its products.
    """

    width: int
    inner_width: int
    activation: Literal["silu", "gelu_tanh"] = "silu"
    gated: bool = True
    bias: bool = False

    def build(self, dtype: DTypeLike) -> "FeedForward":
        return FeedForward(self, dtype, name="mlp")


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """Specifies a layer.

    Attributes:
      mixer: the part that combines tokens.
      feed_forward: the part that computes on each token alone.
      norm: the norm before each part.
      post_norms: whether the parts' outputs are normalized too.
      pre_norms: whether their inputs are.
      residual_scale: the factor of the parts' outputs.

    Example:
        >>> full, *_ = target.module.config.layers
        >>> full.mixer.window, full.feed_forward.gated, full.norm.norm
        (None, True, 'rms')
    """

    mixer: Mixer
    feed_forward: FeedForwardKind
    norm: NormSpec
    post_norms: bool = False
    pre_norms: bool = True
    residual_scale: float = 1.0


class Attention(nn.Module):
    """Computes grouped-query attention of the fed tokens over the cache and each other.

    `table` is the layer's rotary table of their positions, if the caller has computed it (`rope_tables`).
    """

    spec: AttentionSpec
    layer: LayerNumber
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t in"],
        cache: KVCache,
        pending: KVEntries | None,
        positions: Int[Array, "b u"],
        mask: Bool[Array, "b t u"] | None,
        table: RopeTable | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[Float[Array, "b g t h"], Float[Array, "b g t h"]]]:
        spec, fed = self.spec, positions[:, -x.shape[1] :]
        project = lambda name, count: Dense(  # noqa: E731
            (spec.num_kv_heads, count, spec.head_dim), spec.qkv_bias, self.dtype, name=name
        )(x)
        queries, both = project("query", spec.queries_per_kv_head), project("key_value", 2)
        keys, values = both[..., 0, :], both[..., 1, :]
        if table is None and spec.rope is not None:
            table = rope_table(fed, spec.head_dim, spec.rope)
        if spec.query_key_norm or spec.clip is not None:
            queries, keys, values = self._bounded(queries, keys, values)
            if table is not None:
                queries, keys = rotate(queries, table), rotate(keys, table)
        elif table is not None:
            queries, keys, values = cache.rotate(queries, both, table)
        # Tokens that are fed together must see each other exactly as in the cache.
        keys, values = cache.fake_quant(keys), cache.fake_quant(values)
        all_keys, all_values = keys, values
        if pending is not None:
            join = lambda before, x: jnp.concatenate([jnp.swapaxes(before[self.layer], 1, 2), x], axis=1)  # noqa: E731
            all_keys, all_values = join(pending.keys, keys), join(pending.values, values)
        heads = (spec.num_kv_heads, spec.queries_per_kv_head)
        sinks = self.param("sinks", nn.initializers.zeros, heads, jnp.float32) if spec.sinks else None
        attended = attend(
            queries,
            Fresh(all_keys, all_values, positions, mask, sinks),
            History(cache, self.layer),
            scale=spec.scale,
            window=spec.window,
        )
        # Flat: a TPU pads the last two axes to whole tiles, and a head may be half a tile.
        attended = attended.reshape(*attended.shape[:2], -1)
        out = Dense((spec.width,), spec.output_bias, self.dtype, name="output")(attended)
        return out, (jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2))

    def _bounded(
        self, queries: Float[Array, "b t g r h"], keys: Float[Array, "b t g h"], values: Float[Array, "b t g h"]
    ) -> tuple[Float[Array, "b t g r h"], Float[Array, "b t g h"], Float[Array, "b t g h"]]:
        """Normalizes queries and keys, and clips all three, as far as the specification says so."""
        spec = self.spec
        if spec.query_key_norm:
            queries, keys = self._normalized("query_norm", queries), self._normalized("key_norm", keys)
        if (most := spec.clip) is not None:
            queries, keys, values = (jnp.clip(x, -most, most) for x in (queries, keys, values))
        return queries, keys, values

    def _normalized(self, name: str, x: Float[Array, "b t *heads h"]) -> Float[Array, "b t *heads h"]:
        flat = x.reshape(*x.shape[:2], -1) if self.spec.norm_all_heads else x
        return Norm(self.spec.norm, name=name)(flat).reshape(x.shape)


class FeedForward(nn.Module):
    """Applies the feed-forward block, gated (SwiGLU, GeGLU) or plain."""

    spec: FeedForwardSpec
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x):
        spec = self.spec
        activate = ACTIVATIONS[spec.activation]
        if spec.gated:
            both = Dense((2, spec.inner_width), spec.bias, self.dtype, name="gate_up")(x)
            inner = activate(both[..., 0, :]) * both[..., 1, :]
        else:
            inner = activate(Dense((spec.inner_width,), spec.bias, self.dtype, name="up")(x))
        return Dense((spec.width,), spec.bias, self.dtype, name="down")(inner)


class Block(nn.Module):
    """Applies a layer's mixer and feed-forward, each added to the residual stream.

    Attributes:
      spec: the layer's specification.
      layer: its index among the layers that share its cache.
    """

    spec: LayerSpec
    layer: LayerNumber
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: Any,
        pending: Any,
        positions: Int[Array, "b u"],
        mask: Bool[Array, "b t u"] | None,
        table: RopeTable | None = None,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """Returns the residual stream, and the layer's entries for its cache."""
        spec = self.spec
        normalized = Norm(spec.norm, name="attention_norm")(x) if spec.pre_norms else x
        mixed, entry = spec.mixer.build(self.layer, self.dtype)(normalized, cache, pending, positions, mask, table)
        if spec.post_norms:
            mixed = Norm(spec.norm, name="attention_post_norm")(mixed)
        mixed = scaled(mixed, spec.residual_scale)
        if spec.pre_norms:
            x, normalized = NormOfSum(spec.norm, name="mlp_norm")(x, mixed)
        else:
            x = normalized = x + mixed
        fed = spec.feed_forward.build(self.dtype)(normalized)
        if spec.post_norms:
            fed = Norm(spec.norm, name="mlp_post_norm")(fed)
        return x + scaled(fed, spec.residual_scale), entry
