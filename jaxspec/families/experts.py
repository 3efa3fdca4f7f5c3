"""Describes families with feed-forward layers of experts: Qwen 3 MoE, Mixtral and OLMoE.

A layer's experts are stored one by one, or, as transformers 5 has them in memory, as two tensors of all experts:

    mlp.gate.weight                      [e, d]         the router
    mlp.experts.7.gate_proj.weight       [m, d]         and up_proj, of expert 7
    mlp.experts.7.down_proj.weight       [d, m]
    mlp.experts.gate_up_proj             [e, 2m, d]     of all, gates first
    mlp.experts.down_proj                [e, d, m]

Mixtral's names are `block_sparse_moe.gate`, and `block_sparse_moe.experts.7.w1`, `w3` and `w2`. GGUF files have three
tensors of all experts, which are read as `mlp.experts.gate_proj.weight`, and `up_proj` and `down_proj`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import Blocks, Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    LLAMA_ARCHITECTURE,
    LLAMA_NORMS,
    SIZES,
    map_gated_params,
    map_mlp,
    map_norm,
    map_tensor,
    need,
    read_gated_config,
    read_rope_scaling,
    restore_rotated,
)
from jaxspec.families.ropes import ROPE_DEFAULTS
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import ExpertsConfig, TransformerConfig

_QWEN3_MOE = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_local_experts": 128,
    "norm_topk_prob": False,
    "mlp_only_layers": [],
    **ROPE_DEFAULTS,
}
_MIXTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    **ROPE_DEFAULTS,
    "rope_theta": 1e6,
}
_OLMOE = {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "clip_qkv": None,
    "num_experts_per_tok": 8,
    "num_experts": 64,
    "norm_topk_prob": False,
    **ROPE_DEFAULTS,
}
_NULLS = (*SIZES, "num_key_value_heads", "sliding_window")


def _read_qwen3_moe(config: Mapping[str, Any]) -> TransformerConfig:
    layers, step, bias = need(config, "num_hidden_layers"), config["decoder_sparse_step"], config["attention_bias"]
    window = config["sliding_window"] if config["use_sliding_window"] else None
    if window == 0:
        raise SettingError("sliding_window", "expected an integer of at least 1 with use_sliding_window, got 0")
    dense = {layer for layer in range(layers) if (layer + 1) % step} | {*config["mlp_only_layers"]}
    experts = None
    if need(config, "num_local_experts"):
        of_model = tuple(sorted(dense & {*range(layers)}))
        experts = _read_experts(config, "num_local_experts", "moe_intermediate_size", of_model)
    return read_gated_config(
        config,
        windows=(window,) * layers,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        experts=experts,
    )


def _read_mixtral(config: Mapping[str, Any]) -> TransformerConfig:
    window = config["sliding_window"]
    if window == 0:
        raise SettingError("sliding_window", "expected an integer of at least 1, or null, got 0")
    return read_gated_config(
        config,
        windows=(window,) * need(config, "num_hidden_layers"),
        experts=_read_experts({**config, "norm_topk_prob": True}, "num_local_experts", "intermediate_size"),
    )


def _read_olmoe(config: Mapping[str, Any]) -> TransformerConfig:
    bias = config["attention_bias"]
    return read_gated_config(
        config,
        windows=(None,) * need(config, "num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        norm_all_heads=True,
        clip_qkv=config["clip_qkv"],
        experts=_read_experts(config, "num_experts", "intermediate_size"),
    )


def _read_experts(
    config: Mapping[str, Any], count_key: str, width_key: str, dense_layers: tuple[int, ...] = ()
) -> ExpertsConfig:
    count, per_token = need(config, count_key), need(config, "num_experts_per_tok")
    if per_token > count:
        problem = f"expected at most the number of experts, {count}, got {per_token}"
        raise SettingError(f"num_experts_per_tok or {count_key}", problem)
    return ExpertsConfig(count, per_token, need(config, width_key), config["norm_topk_prob"], dense_layers)


@dataclasses.dataclass(frozen=True)
class _Names:
    """Names a layer's router and experts in a family's own form."""

    block: str
    gate: str
    up: str
    down: str

    def of(self, layer: str, expert: int, part: str) -> str:
        return f"{layer}.{self.block}.experts.{expert}.{part}.weight"


_USUAL = _Names("mlp", "gate_proj", "up_proj", "down_proj")
_OF_MIXTRAL = _Names("block_sparse_moe", "w1", "w3", "w2")


def _map_usual(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS, map_norm, functools.partial(_map_layer, _USUAL))


def _map_mixtral(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS, map_norm, functools.partial(_map_layer, _OF_MIXTRAL))


def _map_layer(names: _Names, config: TransformerConfig, layer: int) -> Iterator[ParamMapping]:
    experts, path, name = config.experts, (f"layer_{layer}", "mlp"), f"layers.{layer}"
    if experts is None or layer in experts.dense_layers:
        yield from map_mlp(config, path, f"{name}.mlp")
        return
    inner, outer = (experts.width, config.width), (config.width, experts.width)
    each = range(experts.count)
    pairs = tuple((names.of(name, expert, part), inner) for expert in each for part in (names.gate, names.up))
    downs = tuple((names.of(name, expert, names.down), outer) for expert in each)
    yield map_tensor((*path, "router", "kernel"), f"{name}.{names.block}.gate.weight", (experts.count, config.width))
    yield ParamMapping((*path, "experts_gate_up", "kernel"), pairs, _stack_pairs, by_rows=True, joins=False)
    yield ParamMapping((*path, "experts_down", "kernel"), downs, _stack, by_rows=True, joins=False)


def _stack(*parts: Any) -> Any:
    return parts[0].__array_namespace__().stack(parts)


def _stack_pairs(*parts: Any) -> Any:
    return _stack(*parts).reshape(-1, 2, *parts[0].shape)


_FUSED = re.compile(r"^(.*layers\.\d+)\.mlp\.experts\.(gate_up|gate|up|down)_proj(\.weight)?$")


def _respell(names: _Names, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Returns each expert's tensors under the family's own names, for tensors of all experts too."""
    # Parameters are built one after the other, so that one tensor is held and read once.
    read = functools.lru_cache(1)(lambda name: tensors[name].read())
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.match(name)
        if match is None or len(tensor.shape) != 3:
            found[name.replace(".mlp.gate.", f".{names.block}.gate.")] = tensor
            continue
        parts = [getattr(names, part) for part in match[2].split("_")]
        count, rows, _ = tensor.shape
        for expert in range(count):
            for number, part in enumerate(parts):
                span = slice(rows * number // len(parts), rows * (number + 1) // len(parts))
                found[names.of(match[1], expert, part)] = _slice(tensor, functools.partial(read, name), expert, span)
    return found


def _slice(tensor: LazyTensor, read: Callable[[], np.ndarray], expert: int, rows: slice) -> LazyTensor:
    """Returns some rows of one expert, of a tensor of all experts."""
    shape, blocks = (rows.stop - rows.start, tensor.shape[2]), tensor.blocks
    if blocks is None:
        return LazyTensor(shape, lambda: read()[expert, rows])

    def of_expert() -> Blocks:
        stored = blocks()
        return Blocks(stored.name, stored.rows[expert, rows])

    return LazyTensor(shape, lambda: read()[expert, rows], of_expert)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor], **options: Any
) -> dict[str, Any]:
    """Returns the rotary embedding and a window, with the options that llama.cpp hard-codes."""
    window = settings.get("attention.sliding_window")
    return read_rope_scaling(settings, config, tensors) | ({"sliding_window": window} if window else {}) | options


# Each tensor holds all experts of a layer.
_GGUF_TENSORS = GGUF_TENSORS | {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GGUF_SETTINGS = GGUF_SETTINGS | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
# As llama.cpp's converter writes Mixtral's models.
_GGUF = GGUFLayout(
    architecture=LLAMA_ARCHITECTURE,
    settings=_GGUF_SETTINGS,
    tensors=_GGUF_TENSORS,
    read_settings=_read_gguf_settings,
    restore=restore_rotated,
    has_experts=True,
)
_GGUF_UNROTATED = dataclasses.replace(_GGUF, restore=GGUFLayout.restore)

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    build_config=_read_qwen3_moe,
    map_params=_map_usual,
    defaults=_QWEN3_MOE,
    nulls=_NULLS,
    synonyms={"num_experts": "num_local_experts"},
    respell=functools.partial(_respell, _USUAL),
    gguf=dataclasses.replace(
        _GGUF_UNROTATED,
        architecture="qwen3moe",
        settings=_GGUF_SETTINGS | {"expert_feed_forward_length": "moe_intermediate_size"},
        read_settings=functools.partial(_read_gguf_settings, norm_topk_prob=True),
    ),
)
MIXTRAL = Family(
    model_type="mixtral",
    build_config=_read_mixtral,
    map_params=_map_mixtral,
    defaults=_MIXTRAL,
    nulls=_NULLS,
    synonyms={"num_experts": "num_local_experts"},
    respell=functools.partial(_respell, _OF_MIXTRAL),
    gguf=_GGUF,
)
OLMOE = Family(
    model_type="olmoe",
    build_config=_read_olmoe,
    map_params=_map_usual,
    defaults=_OLMOE,
    nulls=_NULLS,
    synonyms={"num_local_experts": "num_experts"},
    respell=functools.partial(_respell, _USUAL),
    gguf=dataclasses.replace(
        _GGUF_UNROTATED, architecture="olmoe", settings=_GGUF_SETTINGS | {"expert_count": "num_experts"}
    ),
)
