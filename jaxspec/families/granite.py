"""Describes the dense models of Granite 3: Llama with four multipliers."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    LLAMA_NORMS,
    SIZES,
    divided,
    map_gated_params,
    need,
    read_gated_config,
    read_rope_scaling,
    restore_rotated,
)
from jaxspec.families.ropes import ROPE_DEFAULTS
from jaxspec.nn.config import TransformerConfig

# By their names in GGUF files, where each may be missing.
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    **dict.fromkeys(_MULTIPLIERS.values(), 1.0),
    **ROPE_DEFAULTS,
}


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    bias = config["attention_bias"]
    return read_gated_config(
        config,
        windows=(None,) * need(config, "num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config["mlp_bias"],
        attention_scale=float(config["attention_multiplier"]),
        embedding_scale=float(config["embedding_multiplier"]),
        rounded_embedding_scale=False,
        residual_scale=float(config["residual_multiplier"]),
        logit_scale=1 / float(config["logits_scaling"]),
    )


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns the rotary embedding, the biases and the multipliers; llama.cpp scales attention as usual without one."""
    found = {name: settings[key] for key, name in _MULTIPLIERS.items() if key in settings}
    if "attention_multiplier" not in found:
        size = config.get("head_dim") or divided(config, "hidden_size", "num_attention_heads")
        found["attention_multiplier"] = size**-0.5
    biases = {"attention_bias": "blk.0.attn_output.bias" in tensors, "mlp_bias": "blk.0.ffn_down.bias" in tensors}
    return read_rope_scaling(settings, config, tensors) | biases | found


GRANITE = Family(
    model_type="granite",
    build_config=_read_config,
    map_params=_map_params,
    defaults=_DEFAULTS,
    nulls=(*SIZES, "num_key_value_heads"),
    gguf=GGUFLayout(
        architecture="granite",
        settings=GGUF_SETTINGS,
        tensors=GGUF_TENSORS,
        read_settings=_read_gguf_settings,
        restore=restore_rotated,
    ),
)
