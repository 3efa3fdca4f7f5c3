"""Describes gpt-oss: experts with biases and a clamped gate, attention with sinks and alternating windows.

A layer's experts are tensors of all experts, in one of three forms, here for `m` between the products:

    mlp.experts.gate_up_proj             [e, d, 2m]     of safetensors in floats: gates and ups take turns
    mlp.experts.gate_up_proj_blocks      [e, 2m, ...]   of safetensors in MXFP4, read as gate_up_proj.weight, [e, 2m, d]
    mlp.experts.gate_proj.weight         [e, m, d]      of GGUF files, and up_proj.weight

and `down_proj` alike; both products have a bias, called `gate_up_proj_bias` or `gate_proj.bias`. All are read in the
form of GGUF files.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.families.base import Blocks, Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    GLOBAL,
    LLAMA_NORMS,
    LOCAL,
    SIZES,
    map_gated_params,
    map_norm,
    map_tensor,
    need,
    read_gated_config,
    read_rope_scaling,
    read_windows,
)
from jaxspec.families.ropes import ROPE_DEFAULTS
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import ExpertsConfig, TransformerConfig
from jaxspec.nn.experts import ClampedGate

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "sliding_window": 128,
    "layer_types": None,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    **ROPE_DEFAULTS,
    "rope_theta": 150_000.0,
    "rope_parameters": _YARN,
}


def _read_config(config: Mapping[str, Any]) -> TransformerConfig:
    layers, bias = need(config, "num_hidden_layers"), config["attention_bias"]
    kinds = config["layer_types"] or [GLOBAL if layer % 2 else LOCAL for layer in range(layers)]
    return read_gated_config(
        {**config, "hidden_act": "silu"},
        windows=read_windows(kinds, config["sliding_window"], layers),
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
        experts=_read_experts(config),
    )


def _read_experts(config: Mapping[str, Any]) -> ExpertsConfig:
    count, per_token = need(config, "num_local_experts"), need(config, "num_experts_per_tok")
    if per_token > count:
        problem = f"expected at most the number of experts, {count}, got {per_token}"
        raise SettingError("num_experts_per_tok or num_local_experts", problem)
    return ExpertsConfig(
        count,
        per_token,
        need(config, "intermediate_size"),
        normalized=True,
        clamped=ClampedGate(float(config["swiglu_limit"]), float(config["swiglu_alpha"])),
        bias=True,
    )


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, LLAMA_NORMS, map_norm, _map_layer)


def _map_layer(config: TransformerConfig, layer: int) -> Iterator[ParamMapping]:
    experts, path, name = config.experts, (f"layer_{layer}", "mlp"), f"layers.{layer}.mlp"
    assert experts is not None  # every layer has them
    count, inner, width = experts.count, experts.width, config.width
    yield map_tensor((*path, "router", "kernel"), f"{name}.router.weight", (count, width))
    yield map_tensor((*path, "router", "bias"), f"{name}.router.bias", (count,))
    for own, theirs, rest in (("kernel", "weight", (width,)), ("bias", "bias", ())):
        both = tuple((f"{name}.experts.{part}_proj.{theirs}", (count, inner, *rest)) for part in ("gate", "up"))
        yield ParamMapping((*path, "experts_gate_up", own), both, _pair, by_rows=True, joins=False)
    yield map_tensor((*path, "experts_down", "kernel"), f"{name}.experts.down_proj.weight", (count, width, inner))
    yield map_tensor((*path, "experts_down", "bias"), f"{name}.experts.down_proj.bias", (count, width))


def _pair(gate: Any, up: Any) -> Any:
    return gate.__array_namespace__().stack([gate, up], axis=1)


_OF_EXPERTS = re.compile(r"^(.*\.mlp\.experts)\.(gate_up|down)_proj(_bias|\.weight)?$")
_RANKS = {"_bias": 2, ".weight": 3, None: 3}


def _respell(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Returns all tensors under the names that `_map_layer` has."""
    # One slot for all: parameters are built one after the other, so that one tensor is held, and read once for both of
    # its parts.
    held = functools.lru_cache(1)(lambda read: read())
    found = dict(tensors)
    for name, tensor in tensors.items():
        match = _OF_EXPERTS.match(name)
        if name.endswith(".self_attn.sinks.weight"):
            own = {name.removesuffix(".weight"): tensor}
        elif match is None or len(tensor.shape) != _RANKS[match[3]]:
            continue
        else:
            ending, tensor = ".bias" if match[3] == "_bias" else ".weight", _inputs_last(tensor, swap=match[3] is None)
            parts = _halves(tensor, held) if match[2] == "gate_up" else {"down": tensor}
            own = {f"{match[1]}.{part}_proj{ending}": one for part, one in parts.items()}
        del found[name]
        # A tensor that is stored in two forms keeps its name, and so is reported as unexpected.
        found |= {name: tensors[name]} if own.keys() & found.keys() else own
    return found


def _inputs_last(tensor: LazyTensor, *, swap: bool) -> LazyTensor:
    if not swap:
        return tensor
    count, inputs, outputs = tensor.shape
    return LazyTensor((count, outputs, inputs), lambda: tensor.read().swapaxes(1, 2))


def _halves(tensor: LazyTensor, held: Callable[[Callable[[], Any]], Any]) -> dict[str, LazyTensor]:
    """Returns the tensors of gates and ups, which take turns in one; `held` returns the last read tensor again."""
    count, rows, *rest = tensor.shape
    blocks = tensor.blocks

    def half(first: int) -> LazyTensor:
        def take(values: np.ndarray) -> np.ndarray:
            return values[:, first::2]

        size = (count, len(range(first, rows, 2)), *rest)
        floats = lambda: take(held(tensor.read))  # noqa: E731
        if blocks is None:
            return LazyTensor(size, floats)
        return LazyTensor(size, floats, _taken(functools.partial(held, blocks), take))

    return {"gate": half(0), "up": half(1)}


def _taken(blocks: Callable[[], Blocks], take: Callable[[np.ndarray], np.ndarray]) -> Callable[[], Blocks]:
    def some() -> Blocks:
        stored = blocks()
        return Blocks(stored.name, take(stored.rows))

    return some


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns the rotary embedding and the window. Frequencies are blended as in training: not over whole pairs."""
    found = read_rope_scaling(settings, config, tensors)
    if settings.get("rope.scaling.type") == "yarn" and not settings.get("rope.scaling.factor"):
        problem = f"expected a number above 0 for yarn, got {settings.get('rope.scaling.factor')}"
        raise SettingError("rope.scaling.factor", problem)
    if "rope_scaling" in found:
        found["rope_scaling"] |= {"truncate": False}
    else:
        found["rope_parameters"] = {"rope_type": "default"}
    window = settings.get("attention.sliding_window")
    return found | ({} if window is None else {"sliding_window": window})


GPT_OSS = Family(
    model_type="gpt_oss",
    build_config=_read_config,
    map_params=_map_params,
    defaults=_DEFAULTS,
    nulls=(*SIZES, "num_key_value_heads", "head_dim", "sliding_window"),
    synonyms={"num_experts": "num_local_experts"},
    respell=_respell,
    gguf=GGUFLayout(
        architecture="gpt-oss",
        settings={key: name for key, name in GGUF_SETTINGS.items() if name != "intermediate_size"}
        | {
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        tensors={own: name for own, name in GGUF_TENSORS.items() if own != "ffn_norm"}
        | {
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps": "mlp.experts.gate_proj",
            "ffn_up_exps": "mlp.experts.up_proj",
            "ffn_down_exps": "mlp.experts.down_proj",
        },
        read_settings=_read_gguf_settings,
        has_experts=True,
    ),
)
