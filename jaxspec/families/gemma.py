"""Describes the family of Gemma 3, its models of text."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GLOBAL,
    LOCAL,
    divided,
    map_gated_params,
    map_norm,
    need,
    read_activation,
    read_gated_config,
    read_rope,
    read_windows,
)
from jaxspec.families.gguf import SETTINGS, TENSORS, read_rope_scaling
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import Rope

_UNSUPPORTED = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_GGUF_TENSORS = TENSORS | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_27B_LAYERS = 62


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    for key in _UNSUPPORTED:
        if config.get(key):
            raise SettingError(key, f"unsupported {config[key]!r} of gemma3_text; it must be unset")
    layers, width = need(config, "num_hidden_layers"), need(config, "hidden_size")
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    kinds = config.get("layer_types") or [LOCAL if (i + 1) % pattern else GLOBAL for i in range(layers)]
    return read_gated_config(
        config,
        windows=read_windows(kinds, config.get("sliding_window", 4096), layers),
        ropes=_read_ropes(config, kinds),
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        eps=1e-6,
        head_dim=256,
        tied=True,
        context_length=131072,
        query_key_norm=True,
        post_norms=True,
        embedding_scale=width**0.5,
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
    )


def _read_ropes(config: Mapping[str, Any], kinds: Sequence[str]) -> tuple[Rope, ...]:
    """Returns each layer's rotary embedding: layers with a window have another one than those without."""
    nested = config.get("rope_parameters") or {}
    settings = {
        LOCAL: {"rope_theta": config.get("rope_local_base_freq", 10000.0), **(nested.get(LOCAL) or {})},
        GLOBAL: {
            "rope_theta": config.get("rope_theta", 1_000_000.0),
            **(nested.get(GLOBAL) or config.get("rope_scaling") or {}),
        },
    }
    place = "rope_parameters" if nested else "rope_scaling"
    ropes = {kind: read_rope(one, place) for kind, one in settings.items()}
    return tuple(ropes[kind] for kind in kinds)


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, _NORMS, functools.partial(map_norm, build=_add_one))


def _add_one(x: Any) -> Any:
    """Returns the scale, which Gemma stores as its distance from one."""
    return x.astype(np.float32) + 1


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns what llama.cpp knows of Gemma 3 without reading it from the file."""
    is_27b = need(config, "num_hidden_layers") == _27B_LAYERS
    return read_rope_scaling(settings, config, tensors) | {
        "sliding_window": settings.get("attention.sliding_window"),
        "query_pre_attn_scalar": (
            divided(config, "hidden_size", "num_attention_heads") if is_27b else config.get("head_dim", 256)
        ),
        "rope_theta": config.get("rope_theta", 1_000_000.0),
    }


def _restore(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    if not name.endswith("norm.weight"):
        return tensor
    return LazyTensor(tensor.shape, lambda: tensor.read() - 1)


GEMMA3 = Family(
    model_type="gemma3_text",
    read_config=_read_config,
    map_params=_map_params,
    gguf=GGUFLayout(
        architecture="gemma3",
        settings=SETTINGS,
        tensors=_GGUF_TENSORS,
        read_settings=_read_gguf_settings,
        restore=_restore,
        merges_by_id=True,
    ),
)
