"""Reads from GGUF files what Llama and its descendants share: settings, names of tensors, the rotary embedding."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import LazyTensor
from jaxspec.families.common import divided
from jaxspec.families.settings import COUNT, NOT_NEGATIVE, SIZE, TEXT, SettingError

SETTINGS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
TENSORS = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What further keys, without the architecture in front, may hold.
FURTHER_SETTINGS = {
    **dict.fromkeys(("attention.value_length", "rope.dimension_count"), SIZE),
    **dict.fromkeys(("attention.sliding_window", "expert_count"), COUNT),
    "rope.scaling.type": TEXT,
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), NOT_NEGATIVE),
}
# Divisors of the rotary frequencies, stored as a tensor; they become a setting.
ROPE_FACTORS = "rope_freqs.weight"
# Llama 3's cut-offs, which the file's factors were made with and do not spell out.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_rope_scaling(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns `rope_scaling` of a `config.json`, if the rotary embedding is scaled.

    Args:
      settings: the metadata by its keys, without the architecture in front.
      config: what was read of `config.json` already.
      tensors: the file's tensors by their GGUF names.

    Raises:
      SettingError: the rotary embedding is not supported.
    """
    head_dim = config.get("head_dim") or divided(config, "hidden_size", "num_attention_heads")
    said_by = "head_dim" if "head_dim" in config else "num_attention_heads"
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            problem = f"keys have {head_dim} numbers a head; values of another length and partial rotary embedding"
            raise SettingError(f"{key} or {said_by}", f"{settings[key]}, but {problem} are not supported")
    # As llama.cpp reads them: a factor of no type is linear, and files of 2023 have another name for it.
    kind = settings.get("rope.scaling.type", "linear")
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear"))
    if kind not in ("none", "linear"):
        raise SettingError("rope.scaling.type", f"unsupported {kind!r}; supported: none, linear")
    if ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[ROPE_FACTORS].read(), np.float32)
        return {"rope_scaling": _read_llama3_scaling(factors, settings.get("rope.freq_base", 10000.0), head_dim)}
    if kind == "linear" and factor:
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    return {}


def _read_llama3_scaling(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """Returns the Llama 3 scaling that divides the frequencies by these factors."""
    factor = float(factors.max())
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    rotations = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    span = _LLAMA3["high_freq_factor"] - _LLAMA3["low_freq_factor"]
    unscaled = np.clip((rotations - _LLAMA3["low_freq_factor"]) / span, 0, 1)
    expected = 1 / (unscaled + (1 - unscaled) / factor)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise SettingError(ROPE_FACTORS, "holds other factors than those of Llama 3, the only supported ones")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
