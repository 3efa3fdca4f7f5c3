"""Defines the configuration of a decoder, one class for all model families."""

import dataclasses
import math
from typing import Literal

from jaxspec.core import validate
from jaxspec.core.typed import check_fields
from jaxspec.nn.cache_by_kind import Kinds
from jaxspec.nn.experts import ClampedGate, ExpertsSpec
from jaxspec.nn.layers import AttentionSpec, FeedForwardKind, FeedForwardSpec, LayerSpec
from jaxspec.nn.norm import NormSpec
from jaxspec.ops.rope import Rope

_SIZES = ("vocab_size", "num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "mlp_width", "context_length")
_FLAGS = (
    "gated_mlp",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "query_key_norm",
    "post_norms",
    "tied_head",
    "norm_all_heads",
    "sinks",
    "pre_norms",
    "rounded_embedding_scale",
)


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """Holds the sizes of a decoder's feed-forward layers of experts.

    Attributes:
      count: the number of experts of a layer.
      per_token: the number that is chosen for a token.
      width: the inner width of an expert.
      normalized: whether the chances of the chosen experts are divided by their sum.
      dense_layers: the layers that have one feed-forward block of `mlp_width` instead.
      clamped: how gate and up are clamped and combined, instead of by the decoder's activation; or `None`.
      bias: whether router and experts have biases.

    Raises:
      TypeError, ValueError: a field has the wrong type or is out of range.

    Example:
        >>> jaxspec.nn.ExpertsConfig(count=8, per_token=2, width=64, normalized=True).dense_layers
        ()
    """

    count: int
    per_token: int
    width: int
    normalized: bool
    dense_layers: tuple[int, ...] = ()
    clamped: ClampedGate | None = None
    bias: bool = False

    def __post_init__(self):
        owner = "ExpertsConfig"
        validate.counts(owner, **{name: getattr(self, name) for name in ("count", "per_token", "width")})
        if self.per_token > self.count:
            raise ValueError(f"{owner} needs per_token of at most count={self.count}, got {self.per_token}")
        check_fields(self, "normalized", "dense_layers", "clamped", "bias")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Holds the hyperparameters of a decoder-only transformer.

    Sizes count elements. `windows[i]` is the number of positions that layer `i` attends to, the token's own included
    (`None`: all). `ropes[i]` is its rotary embedding (`None`: none; if all are, there are `context_length` learned
    absolute positions). `residual_scale` multiplies what a layer adds, `logit_scale` the input of the output head.
    With `rounded_embedding_scale`, `embedding_scale` is rounded to the embedding's dtype before the product.

    Raises:
      TypeError, ValueError: a field has the wrong type or is out of range, or fields do not fit each other.

    Example:
        >>> config = target.module.config
        >>> config.vocab_size, config.num_layers, config.queries_per_kv_head
        (310, 3, 2)
    """

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    context_length: int
    ropes: tuple[Rope | None, ...]
    windows: tuple[int | None, ...]
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    activation: Literal["silu", "gelu_tanh"] = "silu"
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    post_norms: bool = False
    tied_head: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    norm_all_heads: bool = False
    clip_qkv: float | None = None
    experts: ExpertsConfig | None = None
    sinks: bool = False
    pre_norms: bool = True
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    rounded_embedding_scale: bool = True

    def __post_init__(self):
        owner = "TransformerConfig"
        scales = {k: getattr(self, k) for k in ("embedding_scale", "residual_scale", "logit_scale")}
        scales |= {k: x for k in ("attention_scale", "clip_qkv") if (x := getattr(self, k)) is not None}
        validate.counts(owner, **{name: getattr(self, name) for name in _SIZES})
        validate.in_range(owner, norm_eps=(self.norm_eps, 0, 1), **{k: (x, 0, math.inf) for k, x in scales.items()})
        for name in _FLAGS:
            validate.flag(name, getattr(self, name))
        check_fields(self, "norm", "activation", "experts")
        for name in ("ropes", "windows"):
            validate.instance(name, getattr(self, name), tuple, "pass one entry per layer")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        for name in ("ropes", "windows"):
            if len(getattr(self, name)) != self.num_layers:
                raise ValueError(
                    f"{name} must have one entry per layer, got {len(getattr(self, name))} for {self.num_layers} layers"
                )
        if not (self.pre_norms or self.post_norms):
            raise ValueError("a layer needs pre_norms or post_norms, got neither")
        if self.experts is not None and not (self.gated_mlp and not self.mlp_bias):
            raise ValueError("experts are gated and have no biases, got gated_mlp=False or mlp_bias=True")

    @property
    def queries_per_kv_head(self) -> int:
        """The number of query heads that share a key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def head_size(self) -> int:
        """The number of tokens that the output head scores."""
        return self.vocab_size

    @property
    def learned_positions(self) -> bool:
        """Whether positions are learned embeddings instead of rotations."""
        return all(rope is None for rope in self.ropes)

    @property
    def score_scale(self) -> float:
        """The factor of query-key products before the softmax."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The specification of each layer."""
        norm = NormSpec(self.norm, self.norm_eps)
        each = zip(map(self._feed_forward, range(self.num_layers)), self.ropes, self.windows, strict=True)
        return tuple(
            LayerSpec(
                self._attention(norm, rope, window),
                feed_forward,
                norm,
                self.post_norms,
                self.pre_norms,
                self.residual_scale,
            )
            for feed_forward, rope, window in each
        )

    def _feed_forward(self, layer: int) -> FeedForwardKind:
        own = self.experts
        if own is None or layer in own.dense_layers:
            return FeedForwardSpec(self.width, self.mlp_width, self.activation, self.gated_mlp, self.mlp_bias)
        return ExpertsSpec(
            self.width,
            own.width,
            own.count,
            own.per_token,
            own.normalized,
            self.activation,
            own.clamped,
            own.bias,
        )

    def _attention(self, norm: NormSpec, rope: Rope | None, window: int | None) -> AttentionSpec:
        return AttentionSpec(
            self.width,
            self.num_kv_heads,
            self.queries_per_kv_head,
            self.head_dim,
            self.score_scale,
            rope,
            window,
            norm,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            query_key_norm=self.query_key_norm,
            norm_all_heads=self.norm_all_heads,
            clip=self.clip_qkv,
            sinks=self.sinks,
        )

    @property
    def kinds(self) -> Kinds:
        """The caches that layers share."""
        return Kinds(spec.mixer.cache for spec in self.layers)


@dataclasses.dataclass(frozen=True)
class SmallerHeadConfig(TransformerConfig):
    """Holds the hyperparameters of a decoder whose output head has fewer rows than its embedding.

    Attributes:
      rows: the number of rows of the head.
    """

    rows: int = dataclasses.field(kw_only=True)

    @property
    def head_size(self) -> int:
        return self.rows
