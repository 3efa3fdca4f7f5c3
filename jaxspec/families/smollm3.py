"""Describes SmolLM3: Llama without a rotary embedding in every fourth layer."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    GLOBAL,
    LLAMA_NORMS,
    LOCAL,
    SIZES,
    map_gated_params,
    need,
    read_gated_config,
    read_rope_scaling,
    read_windows,
    restore_rotated,
)
from jaxspec.families.ropes import ROPE_DEFAULTS, read_one_rope
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import TransformerConfig

_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    **ROPE_DEFAULTS,
    "rope_theta": 2_000_000.0,
}


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    layers, bias, window = need(config, "num_hidden_layers"), config["attention_bias"], config["sliding_window"]
    rotated = _read_rotated(config, layers)
    has_windows = config["use_sliding_window"] and window is not None
    kinds = config["layer_types"] or [LOCAL if has_windows and not each else GLOBAL for each in rotated]
    rope = read_one_rope(config)
    return read_gated_config(
        config,
        windows=read_windows(kinds, window, layers),
        ropes=tuple(rope if each else None for each in rotated),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config["mlp_bias"],
    )


def _read_rotated(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Returns whether each layer has a rotary embedding: `no_rope_layers` has a 1 for those that do."""
    said, interval = config["no_rope_layers"], config["no_rope_layer_interval"]
    if said is not None and len(said) < layers:
        problem = f"expected one number for each of {layers} layers, got {len(said)}"
        raise SettingError("no_rope_layers or num_hidden_layers", problem)
    found = [bool((layer + 1) % interval) if said is None else said[layer] == 1 for layer in range(layers)]
    if not any(found):
        raise SettingError(
            "no_rope_layer_interval" if said is None else "no_rope_layers",
            "no layer has a rotary embedding, which is not supported; expected one that has",
        )
    return found


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    biases = {"attention_bias": "blk.0.attn_output.bias" in tensors, "mlp_bias": "blk.0.ffn_down.bias" in tensors}
    return read_rope_scaling(settings, config, tensors) | biases


SMOLLM3 = Family(
    model_type="smollm3",
    build_config=_read_config,
    map_params=_map_params,
    defaults=_DEFAULTS,
    nulls=(*SIZES, "num_key_value_heads"),
    gguf=GGUFLayout(
        architecture="smollm3",
        settings=GGUF_SETTINGS,
        tensors=GGUF_TENSORS,
        read_settings=_read_gguf_settings,
        restore=restore_rotated,
    ),
)
