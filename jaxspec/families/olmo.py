"""Describes OLMo 2 and 3: norms after each part of a layer, and over all heads of queries and keys.

OLMo 3 has windows in three of four layers; only the others have a scaled rotary embedding.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxspec.families.base import Family, GGUFLayout, LazyTensor, ParamMapping
from jaxspec.families.common import (
    GGUF_SETTINGS,
    GGUF_TENSORS,
    GLOBAL,
    LOCAL,
    SIZES,
    map_gated_params,
    need,
    read_gated_config,
    read_rope_scaling,
    read_windows,
)
from jaxspec.families.ropes import ROPE_DEFAULTS, read_rope
from jaxspec.nn.config import TransformerConfig

_NORMS = {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
_OLMO2 = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    **ROPE_DEFAULTS,
}
_OLMO3 = _OLMO2 | {"sliding_window": 4096, "layer_types": None, "rope_theta": 500_000.0}
_GLOBAL_EVERY = 4


def _read_olmo2(config: Mapping[str, Any]) -> TransformerConfig:
    return _read(config, windows=(None,) * need(config, "num_hidden_layers"))


def _read_olmo3(config: Mapping[str, Any]) -> TransformerConfig:
    layers = need(config, "num_hidden_layers")
    kinds = config["layer_types"] or _layer_types(_pattern(layers, _GLOBAL_EVERY))
    windows = read_windows(kinds, config["sliding_window"], layers)
    nested, scaling = config["rope_parameters"] or {}, config["rope_scaling"] or {}
    place = "rope_scaling" if scaling else "rope_parameters"
    ropes = {
        LOCAL: read_rope(config, nested.get(LOCAL) or {}, "rope_parameters"),
        GLOBAL: read_rope(config, (nested.get(GLOBAL) or {}) | scaling, place),
    }
    return _read(config, windows=windows, ropes=tuple(ropes[kind] for kind in kinds))


def _read(config: Mapping[str, Any], **options: Any) -> TransformerConfig:
    bias = config["attention_bias"]
    norms = {"query_key_norm": True, "norm_all_heads": True, "pre_norms": False, "post_norms": True}
    return read_gated_config(config, qkv_bias=bias, output_bias=bias, **norms, **options)


def _map_params(config: TransformerConfig) -> Iterator[ParamMapping]:
    return map_gated_params(config, _NORMS)


def _read_gguf_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns the rotary embedding, and the windows of llama.cpp's "olmo2" architecture, with which it is an OLMo 3."""
    values = read_rope_scaling(settings, config, tensors)
    scaling, attention = values.get("rope_scaling", {}), settings.get("rope.scaling.attn_factor")
    if scaling.get("rope_type") == "yarn" and attention is not None:
        # Unlike for other models, llama.cpp's converter writes the whole factor.
        values["rope_scaling"] = scaling | {"attention_factor": attention}
    values["attention_bias"] = "blk.0.attn_output.bias" in tensors
    if window := settings.get("attention.sliding_window"):
        values |= {"model_type": OLMO3.model_type, "sliding_window": window}
        pattern = settings.get("attention.sliding_window_pattern", _GLOBAL_EVERY)
        if isinstance(pattern, int):
            pattern = _pattern(need(config, "num_hidden_layers"), pattern)
        values["layer_types"] = _layer_types(pattern)
    return values


def _layer_types(pattern: Iterable[bool]) -> list[str]:
    return [LOCAL if has_window else GLOBAL for has_window in pattern]


def _pattern(layers: int, period: int) -> list[bool]:
    """Returns which layers have a window: all but the last of each period."""
    return [bool((layer + 1) % period) for layer in range(layers)]


OLMO2 = Family(
    model_type="olmo2",
    build_config=_read_olmo2,
    map_params=_map_params,
    defaults=_OLMO2,
    nulls=(*SIZES, "num_key_value_heads"),
    gguf=GGUFLayout(
        architecture="olmo2",
        settings=GGUF_SETTINGS,
        tensors={own: name for own, name in GGUF_TENSORS.items() if own not in ("attn_norm", "ffn_norm")}
        | {"post_attention_norm": _NORMS["attention_post_norm"], "post_ffw_norm": _NORMS["mlp_post_norm"]},
        read_settings=_read_gguf_settings,
    ),
)
# llama.cpp's converter writes both as "olmo2".
OLMO3 = Family(
    model_type="olmo3",
    build_config=_read_olmo3,
    map_params=_map_params,
    defaults=_OLMO3,
    nulls=(*SIZES, "num_key_value_heads", "sliding_window"),
)
