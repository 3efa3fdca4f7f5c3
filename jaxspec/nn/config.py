"""Defines the configuration of a decoder: the one class that every model family is read into."""

import dataclasses
from typing import Literal, Protocol, runtime_checkable

from jaxspec.ops.rope import Rope


@runtime_checkable
class NormConfig(Protocol):
    """Specifies the part of a configuration that norms read."""

    @property
    def norm(self) -> Literal["rms", "layer"]: ...

    @property
    def norm_eps(self) -> float: ...


@runtime_checkable
class MLPConfig(Protocol):
    """Specifies the part of a configuration that feed-forward blocks read."""

    @property
    def width(self) -> int: ...

    @property
    def mlp_width(self) -> int: ...

    @property
    def activation(self) -> str: ...

    @property
    def gated_mlp(self) -> bool: ...

    @property
    def mlp_bias(self) -> bool: ...


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sets the hyperparameters of a decoder-only transformer.

    Sizes count elements. `windows[i]` is the number of positions back that layer `i` may attend, itself
    included (`None`: all); `ropes[i]` is its rotary embedding (`None`: learned absolute
    positions, of which there are `context_length`).

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

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        for name in ("ropes", "windows"):
            if len(getattr(self, name)) != self.num_layers:
                raise ValueError(
                    f"{name} must have one entry a layer, got {len(getattr(self, name))} for {self.num_layers} layers"
                )

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
        return self.ropes[0] is None

    @property
    def score_scale(self) -> float:
        """The factor of query-key products before the softmax."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
