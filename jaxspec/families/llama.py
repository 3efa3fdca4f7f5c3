"""Describes the Llama family, and those that differ from it only in options: Mistral, Qwen 2 and Qwen 3."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    GLOBAL,
    LLAMA_ARCHITECTURE,
    LLAMA_NORMS,
    LOCAL,
    SIZES,
    map_gated_params,
    need,
    read_gated_config,
    read_rope_scaling,
    read_windows,
    restore_rotated,
    write_llama_config,
)
from jaxspec.families.ropes import ROPE_DEFAULTS
from jaxspec.nn.config import TransformerConfig

_ROTATED = re.compile(r"\.([qk])_proj\.")


_LLAMA = {
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
    **ROPE_DEFAULTS,
}
_MISTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
    **ROPE_DEFAULTS,
}
_QWEN2 = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    **ROPE_DEFAULTS,
}
_QWEN3 = _QWEN2 | {"head_dim": 128, "attention_bias": False}
# As in transformers, a null number of key-value heads is the number of heads, and a null window means all positions.
_NULLS = (*SIZES, "num_key_value_heads", "sliding_window")


def _read_llama(config: Mapping[str, Any]) -> TransformerConfig:
    bias = config["attention_bias"]
    return read_gated_config(
        config,
        windows=(None,) * need(config, "num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config["mlp_bias"],
    )


def _read_mistral(config: Mapping[str, Any]) -> TransformerConfig:
    layers, window = need(config, "num_hidden_layers"), config["sliding_window"]
    kinds = [GLOBAL if window is None else LOCAL] * layers
    return read_gated_config(config, windows=read_windows(kinds, window, layers))


def _read_qwen2(config: Mapping[str, Any]) -> TransformerConfig:
    return read_gated_config(config, windows=_read_qwen_windows(config), qkv_bias=True)


def _read_qwen3(config: Mapping[str, Any]) -> TransformerConfig:
    bias = config["attention_bias"]
    return read_gated_config(
        config,
        windows=_read_qwen_windows(config),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
    )


def _read_qwen_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers = need(config, "num_hidden_layers")
    window = config["sliding_window"] if config["use_sliding_window"] else None
    first = layers if window is None else config["max_window_layers"]
    kinds = config["layer_types"] or [GLOBAL if i < first else LOCAL for i in range(layers)]
    return read_windows(kinds, window, layers)


def _write(model_type: str, architecture: str, config: TransformerConfig) -> dict[str, Any]:
    return write_llama_config(config) | {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_head,
    }


def _write_with_biases(model_type: str, architecture: str, config: TransformerConfig) -> dict[str, Any]:
    biases = {"attention_bias": config.output_bias, "mlp_bias": config.mlp_bias}
    return _write(model_type, architecture, config) | biases


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns biases and window of llama.cpp's "llama" architecture; with a window it is a Mistral."""
    values = read_rope_scaling(settings, config, tensors) | {
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
    }
    if window := settings.get("attention.sliding_window"):
        values |= {"model_type": MISTRAL.model_type, "sliding_window": window}
    return values


def _store(name: str, x: np.ndarray, config: TransformerConfig) -> np.ndarray:
    if not (match := _ROTATED.search(name)):
        return x
    return to_interleaved(x, config.num_kv_heads if match[1] == "k" else config.num_heads)


def to_interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes `to_half_split`."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


LLAMA = Family(
    model_type="llama",
    build_config=_read_llama,
    map_params=_map_params,
    defaults=_LLAMA,
    nulls=_NULLS,
    write_config=functools.partial(_write_with_biases, "llama", "LlamaForCausalLM"),
    gguf=GGUFLayout(
        architecture=LLAMA_ARCHITECTURE,
        settings=GGUF_SETTINGS,
        tensors=GGUF_TENSORS,
        read_settings=_read_gguf_settings,
        restore=restore_rotated,
        store=_store,
    ),
)
# llama.cpp's converter writes Mistral's models as "llama".
MISTRAL = Family(
    model_type="mistral", build_config=_read_mistral, map_params=_map_params, defaults=_MISTRAL, nulls=_NULLS
)
QWEN2 = Family(
    model_type="qwen2",
    build_config=_read_qwen2,
    map_params=_map_params,
    defaults=_QWEN2,
    nulls=_NULLS,
    write_config=functools.partial(_write, "qwen2", "Qwen2ForCausalLM"),
    gguf=GGUFLayout(
        architecture="qwen2", settings=GGUF_SETTINGS, tensors=GGUF_TENSORS, read_settings=read_rope_scaling
    ),
)
QWEN3 = Family(
    model_type="qwen3",
    build_config=_read_qwen3,
    map_params=_map_params,
    defaults=_QWEN3,
    nulls=_NULLS,
    write_config=functools.partial(_write_with_biases, "qwen3", "Qwen3ForCausalLM"),
    gguf=GGUFLayout(
        architecture="qwen3", settings=GGUF_SETTINGS, tensors=GGUF_TENSORS, read_settings=read_rope_scaling
    ),
)
