"""Describes the text models of the Gemma 3 family."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    GLOBAL,
    LOCAL,
    SIZES,
    divided,
    map_gated_params,
    map_norm,
    need,
    read_gated_config,
    read_rope_scaling,
    read_windows,
)
from jaxspec.families.ropes import ROPE_DEFAULTS, read_rope
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
_GGUF_TENSORS = GGUF_TENSORS | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_27B_LAYERS = 62
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "sliding_window_pattern": 6,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping")),
    "use_bidirectional_attention": False,
    **ROPE_DEFAULTS,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    for key in _UNSUPPORTED:
        if config.get(key):
            raise SettingError(key, f"unsupported {config[key]!r} of gemma3_text; it must be unset")
    layers, width = need(config, "num_hidden_layers"), need(config, "hidden_size")
    pattern = config["sliding_window_pattern"]
    kinds = config["layer_types"] or [LOCAL if (i + 1) % pattern else GLOBAL for i in range(layers)]
    bias = config["attention_bias"]
    return read_gated_config(
        config,
        windows=read_windows(kinds, config["sliding_window"], layers),
        ropes=_read_ropes(config, kinds),
        activation="hidden_activation",
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        post_norms=True,
        embedding_scale=width**0.5,
        attention_scale=config["query_pre_attn_scalar"] ** -0.5,
    )


def _read_ropes(config: Mapping[str, Any], kinds: Sequence[str]) -> tuple[Rope, ...]:
    """Returns each layer's rotary embedding, which differs between layers with and without a window."""
    nested, scaling = config["rope_parameters"] or {}, config["rope_scaling"] or {}
    if not nested and "rope_type" not in scaling and scaling.get("type") not in (None, "default"):
        raise SettingError(
            "rope_scaling.type",
            f"transformers 4 scales by {scaling['type']!r} here, transformers 5 does not; call the key rope_type to "
            "scale, or leave rope_scaling out",
        )
    # As in transformers, the length next to them belongs to families with one embedding.
    config = {**config, "original_max_position_embeddings": None}
    ropes = {
        LOCAL: read_rope(config, nested.get(LOCAL) or {}, "rope_parameters", "rope_local_base_freq"),
        GLOBAL: read_rope(
            config, (nested.get(GLOBAL) or {}) | scaling, "rope_scaling" if scaling else "rope_parameters"
        ),
    }
    return tuple(ropes[kind] for kind in kinds)


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, _NORMS, functools.partial(map_norm, build=_add_one))


def _add_one(x: Any) -> Any:
    """Returns the scale, which Gemma stores as its distance from one."""
    return x.astype(np.float32) + 1


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns settings of Gemma 3 that llama.cpp has built in, and that are not in the file."""
    is_27b = need(config, "num_hidden_layers") == _27B_LAYERS
    return read_rope_scaling(settings, config, tensors) | {
        "sliding_window": settings.get("attention.sliding_window"),
        "query_pre_attn_scalar": (
            config["head_dim"]
            if "head_dim" in config and not is_27b
            else divided(config, "hidden_size", "num_attention_heads")
        ),
        "rope_theta": config.get("rope_theta", _DEFAULTS["rope_theta"]),
    }


def _restore(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    if not name.endswith("norm.weight"):
        return tensor
    return LazyTensor(tensor.shape, lambda: tensor.read() - 1)


GEMMA3 = Family(
    model_type="gemma3_text",
    build_config=_read_config,
    map_params=_map_params,
    defaults=_DEFAULTS,
    nulls=(*SIZES, "sliding_window"),
    gguf=GGUFLayout(
        architecture="gemma3",
        settings=GGUF_SETTINGS,
        tensors=_GGUF_TENSORS,
        read_settings=_read_gguf_settings,
        restore=_restore,
        merges_by_id=True,
    ),
)
