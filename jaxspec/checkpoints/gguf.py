"""A GGUF file as a checkpoint: its metadata as a Hugging Face configuration, its tensors renamed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoints.gguf_file import GGUFFile, read_gguf
from jaxspec.checkpoints.tensors import Checkpoint, LazyTensor
from jaxspec.checkpoints.tokenizer import Tokenizer

_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text", "gpt2": "gpt2"}
_SETTINGS = {
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
_GPT2_SETTINGS = {
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "context_length": "n_positions",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_NAMES = {
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
_GEMMA3_NAMES = _NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT2_NAMES = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")
_ROPE_FACTORS = "rope_freqs.weight"
# Llama 3's cut-offs, which the file's factors were made with and do not spell out.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_GEMMA3_27B_LAYERS = 62


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Reads a GGUF file of the llama, qwen2, qwen3, gemma3 or gpt2 architecture.

    Raises:
      ValueError: the file is truncated or corrupted, or its architecture or one of its options is
        not supported.
    """
    file = read_gguf(path)
    try:
        config = _config(file)
        tokenizer = Tokenizer.from_gguf(file.metadata) if "tokenizer.ggml.model" in file.metadata else None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Checkpoint(str(path), config, _tensors(file, config), tokenizer)


def _config(file: GGUFFile) -> dict[str, Any]:
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in _MODEL_TYPES:
        raise ValueError(
            f"unsupported GGUF architecture {architecture!r}; supported: {', '.join(sorted(_MODEL_TYPES))}"
        )
    if metadata.get(f"{architecture}.expert_count"):
        raise ValueError("mixture-of-experts models are not supported; pass a dense model")
    if "token_embd.weight" not in file.tensors:
        raise ValueError("the file has no tensor token_embd.weight; is it an adapter or a part of a model?")
    settings = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    names = _GPT2_SETTINGS if architecture == "gpt2" else _SETTINGS
    config = {theirs: settings[ours] for ours, theirs in names.items() if ours in settings}
    config |= {
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if architecture != "gpt2":
        config |= _rope_config(settings, config, file.tensors)
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_down.bias" in file.tensors
        if window := settings.get("attention.sliding_window"):
            config |= {"model_type": "mistral", "sliding_window": window}
    if architecture == "gemma3":
        config |= _gemma3_config(settings, config)
    return config


def _gemma3_config(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp knows of Gemma 3 without reading it from the file."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    is_27b = config["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    return {
        "sliding_window": settings.get("attention.sliding_window"),
        "query_pre_attn_scalar": width // heads if is_27b else config.get("head_dim", 256),
        "rope_theta": config.get("rope_theta", 1_000_000.0),
    }


def _rope_config(settings, config, tensors: Mapping[str, LazyTensor]) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if settings.get("attention.value_length", head_dim) != head_dim:
        raise ValueError("keys and values of different lengths are not supported")
    if (rotated := settings.get("rope.dimension_count", head_dim)) != head_dim:
        raise ValueError(f"partial rotary embedding ({rotated} of {head_dim} dimensions) is not supported")
    kind, factor = settings.get("rope.scaling.type", "none"), settings.get("rope.scaling.factor")
    if kind not in ("none", "linear"):
        raise ValueError(f"unsupported rotary scaling {kind!r}; supported: none, linear")
    if _ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[_ROPE_FACTORS].read(), np.float32)
        return {"rope_scaling": _llama3_scaling(factors, settings.get("rope.freq_base", 10000.0), head_dim)}
    if kind == "linear" and factor:
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    return {}


def _llama3_scaling(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """The Llama 3 scaling whose per-frequency divisors these are."""
    factor = float(factors.max())
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    rotations = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    span = _LLAMA3["high_freq_factor"] - _LLAMA3["low_freq_factor"]
    keep = np.clip((rotations - _LLAMA3["low_freq_factor"]) / span, 0, 1)
    expected = 1 / (keep + (1 - keep) / factor)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ValueError(f"{_ROPE_FACTORS} holds other factors than those of Llama 3, the only supported ones")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _tensors(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    kind = config["model_type"]
    names = {"gemma3_text": _GEMMA3_NAMES, "gpt2": _GPT2_NAMES}.get(kind, _NAMES)
    return {
        _hugging_face_name(name, names, "h" if kind == "gpt2" else "layers"): _restore(name, tensor, config)
        for name, tensor in file.tensors.items()
        if name != _ROPE_FACTORS
    }


def _hugging_face_name(name: str, names: Mapping[str, str], layers: str) -> str:
    block = _BLOCK.match(name)
    base, _, suffix = (block[2] if block else name).rpartition(".")
    if base not in names:
        return name
    return f"{layers}.{block[1]}.{names[base]}.{suffix}" if block else f"{names[base]}.{suffix}"


def _restore(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    """Undoes what llama.cpp's converter did to a tensor's values."""
    kind = config["model_type"]
    if kind in ("llama", "mistral") and (match := re.search(r"\.attn_([qk])\.", name)):
        heads = config["num_attention_heads"]
        if match[1] == "k":
            heads = config.get("num_key_value_heads") or heads
        return LazyTensor(tensor.shape, lambda: to_half_split(tensor.read(), heads))
    if kind == "gemma3_text" and name.endswith("norm.weight"):
        return LazyTensor(tensor.shape, lambda: tensor.read() - 1)
    if kind == "gpt2" and name.startswith("blk.") and len(tensor.shape) == 2:
        return LazyTensor(tensor.shape[::-1], lambda: tensor.read().T)
    return tensor


def to_half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a query or key projection from rotating neighbours to rotating halves.

    Args:
      rows: `[heads * head_dim, ...]`, in each head the rows `0, d/2, 1, d/2 + 1, ...`.
      heads: how many heads there are.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
