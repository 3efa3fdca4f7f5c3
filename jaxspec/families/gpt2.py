"""Describes the family of GPT-2."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import divided, group_heads, map_norm, map_tensor, need, read_activation
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import TransformerConfig

_GGUF_SETTINGS = {
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "context_length": "n_positions",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_GGUF_TENSORS = {
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


_SIZES = ("vocab_size", "n_embd", "n_layer", "n_head")
_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

_SYNONYMS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(key):
            raise SettingError(key, f"unsupported {config[key]!r} of gpt2; it must be false")
    if not config["scale_attn_weights"]:
        raise SettingError("scale_attn_weights", "unsupported False of gpt2; it must be true")
    layers, heads, width = (need(config, key) for key in ("n_layer", "n_head", "n_embd"))
    return TransformerConfig(
        vocab_size=need(config, "vocab_size"),
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=divided(config, "n_embd", "n_head"),
        mlp_width=config["n_inner"] or 4 * width,
        context_length=config["n_positions"],
        ropes=(None,) * layers,
        windows=(None,) * layers,
        norm="layer",
        norm_eps=config["layer_norm_epsilon"],
        activation=read_activation(config, "activation_function"),
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_head=config["tie_word_embeddings"],
    )


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    """Maps every parameter; kernels are stored `[in, out]`, and queries, keys and values as one."""
    yield map_tensor(("embedding",), "wte.weight", (config.vocab_size, config.width))
    yield map_tensor(("position_embedding",), "wpe.weight", (config.context_length, config.width))
    for layer in range(config.num_layers):
        yield from _map_layer(config, f"layer_{layer}", f"h.{layer}")
    yield from _map_layer_norm(("final_norm",), "ln_f", config.width)
    if not config.tied_head:
        yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, config.width))


def _map_layer(config: TransformerConfig, path: str, name: str) -> Iterator[ParamMapping]:
    width, inner = config.width, config.mlp_width
    yield from _map_layer_norm((path, "attention_norm"), f"{name}.ln_1", width)
    fused = f"{name}.attn.c_attn"
    for own, parts in {"query": slice(0, 1), "key_value": slice(1, 3)}.items():
        build = functools.partial(_split_fused, parts=parts, heads=config.num_heads, head_dim=config.head_dim)
        yield ParamMapping((path, "attention", own, "kernel"), ((f"{fused}.weight", (width, 3 * width)),), build)
        yield ParamMapping((path, "attention", own, "bias"), ((f"{fused}.bias", (3 * width,)),), build)
    yield from _map_linear((path, "attention", "output"), f"{name}.attn.c_proj", (width, width))
    yield from _map_layer_norm((path, "mlp_norm"), f"{name}.ln_2", width)
    yield from _map_linear((path, "mlp", "up"), f"{name}.mlp.c_fc", (width, inner))
    yield from _map_linear((path, "mlp", "down"), f"{name}.mlp.c_proj", (inner, width))


def _map_linear(path: tuple[str, ...], name: str, shape: tuple[int, int]) -> Iterator[ParamMapping]:
    yield ParamMapping((*path, "kernel"), ((f"{name}.weight", shape),), np.transpose)
    yield map_tensor((*path, "bias"), f"{name}.bias", shape[1:])


def _map_layer_norm(path: tuple[str, ...], name: str, width: int) -> Iterator[ParamMapping]:
    yield map_norm((*path, "scale"), f"{name}.weight", width)
    yield map_norm((*path, "bias"), f"{name}.bias", width)


def _split_fused(fused: np.ndarray, parts: slice, heads: int, head_dim: int) -> np.ndarray:
    """Extracts `parts` of queries, keys and values from `[in, 3*g*d]` or `[3*g*d]`: `[g, n, d, in]` or `[g, n, d]`."""
    return group_heads(*np.split(fused.T, 3)[parts], heads=heads, head_dim=head_dim)


def _restore(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    if not name.startswith("blk.") or len(tensor.shape) != 2:
        return tensor
    return LazyTensor(tensor.shape[::-1], lambda: tensor.read().T)


GPT2 = Family(
    model_type="gpt2",
    build_config=_read_config,
    map_params=_map_params,
    defaults=_DEFAULTS,
    nulls=_SIZES,
    synonyms=_SYNONYMS,
    prefix="transformer.",
    constants=r"^h\.\d+\.attn\.(masked_)?bias$",
    gguf=GGUFLayout(architecture="gpt2", settings=_GGUF_SETTINGS, tensors=_GGUF_TENSORS, blocks="h", restore=_restore),
    inputs_first=True,
)
