"""Describes the families of Llama and of what differs from it by options alone: Mistral, Qwen 2 and Qwen 3."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GLOBAL,
    LLAMA_NORMS,
    LOCAL,
    map_gated_params,
    need,
    read_gated_config,
    read_windows,
    write_llama_config,
)
from jaxspec.families.gguf import SETTINGS, TENSORS, read_rope_scaling
from jaxspec.nn.config import TransformerConfig

_GGUF_ROTATED = re.compile(r"\.attn_([qk])\.")
_ROTATED = re.compile(r"\.([qk])_proj\.")


def _read_llama(config: Mapping[str, Any]) -> TransformerConfig:
    bias = bool(config.get("attention_bias", False))
    return read_gated_config(
        config,
        windows=(None,) * need(config, "num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _read_mistral(config: Mapping[str, Any]) -> TransformerConfig:
    # A configuration that does not speak of windows has them, as in transformers; null is none.
    windows = (config.get("sliding_window", 4096),) * need(config, "num_hidden_layers")
    return read_gated_config(config, windows=windows)


def _read_qwen2(config: Mapping[str, Any]) -> TransformerConfig:
    return read_gated_config(config, windows=_read_qwen_windows(config), qkv_bias=True)


def _read_qwen3(config: Mapping[str, Any]) -> TransformerConfig:
    bias = bool(config.get("attention_bias", False))
    return read_gated_config(
        config,
        windows=_read_qwen_windows(config),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        head_dim=128,
    )


def _read_qwen_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers = need(config, "num_hidden_layers")
    if not config.get("use_sliding_window", False):
        return (None,) * layers
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [GLOBAL if i < first else LOCAL for i in range(layers)]
    return read_windows(kinds, config.get("sliding_window", 4096), layers)


def _write_llama(config: TransformerConfig) -> dict[str, Any]:
    return _write("llama", "LlamaForCausalLM", config) | _write_biases(config)


def _write_qwen2(config: TransformerConfig) -> dict[str, Any]:
    return _write("qwen2", "Qwen2ForCausalLM", config)


def _write_qwen3(config: TransformerConfig) -> dict[str, Any]:
    return _write("qwen3", "Qwen3ForCausalLM", config) | _write_biases(config)


def _write(model_type: str, architecture: str, config: TransformerConfig) -> dict[str, Any]:
    return write_llama_config(config) | {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_head,
    }


def _write_biases(config: TransformerConfig) -> dict[str, Any]:
    return {"attention_bias": config.output_bias, "mlp_bias": config.mlp_bias}


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns biases and window of a model of llama.cpp's "llama", which is a Mistral if it has a window."""
    values = read_rope_scaling(settings, config, tensors) | {
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
    }
    if window := settings.get("attention.sliding_window"):
        values |= {"model_type": MISTRAL.model_type, "sliding_window": window}
    return values


def _restore(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    if not (match := _GGUF_ROTATED.search(name)):
        return tensor
    heads = config["num_attention_heads"]
    if match[1] == "k":
        heads = config.get("num_key_value_heads") or heads
    return tensor.reorder(lambda rows: to_half_split(rows, heads))


def _store(name: str, x: np.ndarray, config: TransformerConfig) -> np.ndarray:
    if not (match := _ROTATED.search(name)):
        return x
    return to_interleaved(x, config.num_kv_heads if match[1] == "k" else config.num_heads)


def to_half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a query or key projection from rotating neighbors to rotating halves.

    Args:
      rows: `[heads * head_dim, ...]`, in each head the rows `0, d/2, 1, d/2 + 1, ...`.
      heads: how many heads there are.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def to_interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes `to_half_split`."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


LLAMA = Family(
    model_type="llama",
    read_config=_read_llama,
    map_params=_map_params,
    write_config=_write_llama,
    gguf=GGUFLayout(
        architecture="llama",
        settings=SETTINGS,
        tensors=TENSORS,
        read_settings=_read_gguf_settings,
        restore=_restore,
        store=_store,
    ),
)
# llama.cpp's converter writes Mistral's models as "llama".
MISTRAL = Family(model_type="mistral", read_config=_read_mistral, map_params=_map_params)
QWEN2 = Family(
    model_type="qwen2",
    read_config=_read_qwen2,
    map_params=_map_params,
    write_config=_write_qwen2,
    gguf=GGUFLayout(architecture="qwen2", settings=SETTINGS, tensors=TENSORS, read_settings=read_rope_scaling),
)
QWEN3 = Family(
    model_type="qwen3",
    read_config=_read_qwen3,
    map_params=_map_params,
    write_config=_write_qwen3,
    gguf=GGUFLayout(architecture="qwen3", settings=SETTINGS, tensors=TENSORS, read_settings=read_rope_scaling),
)
