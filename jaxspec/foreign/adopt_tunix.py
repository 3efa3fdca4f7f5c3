"""Describes tunix's models and the places of their weights: Llama 3, Qwen 2 and 3, Gemma 1 and 3.

Where the configuration contradicts the code that runs, this follows the code.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxspec.core import validate
from jaxspec.families.base import Family
from jaxspec.families.common import GLOBAL, LOCAL
from jaxspec.families.gemma import GEMMA3
from jaxspec.families.llama import LLAMA, QWEN2, QWEN3
from jaxspec.families.settings import EPSILON, FLAG, LAYERS, NOT_NEGATIVE, SIZE, STRETCH, THETA
from jaxspec.foreign.fields import DTYPES, Fields
from jaxspec.foreign.places import Place, Source, flatten
from jaxspec.nn.config import TransformerConfig

_GEMMA_EPS = 1e-6  # hard-coded in its norms
_UNUSED = ("vision_encoder.", "embedder.mm_")
_GEMMA4 = (
    "tunix's gemma4 cannot be adopted: the built-in transformer lacks norms of values, scales of layers, another head "
    "size and partial rotation in layers without a window, layers that share keys and values or have their own inputs, "
    "and a logit cap; pass a model of gemma3"
)
_GEMMA_NORMS = {"input_layernorm": "pre_attention_norm", "post_attention_layernorm": "pre_ffw_norm"}
_GEMMA3_NORMS = {
    "input_layernorm": "pre_attention_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "pre_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn._query_norm",
    "self_attn.k_norm": "attn._key_norm",
}
_SETTINGS = {
    **dict.fromkeys(("vocab_size", "num_embed", "embed_dim", "hidden_dim", "num_heads", "num_kv_heads"), SIZE),
    "num_layers": LAYERS,
    **dict.fromkeys(("head_dim", "sliding_window_size"), SIZE),
    **dict.fromkeys(("weight_tying", "use_tied_embedding", "use_post_attn_norm", "use_post_ffw_norm"), FLAG),
    "norm_eps": EPSILON,
    **dict.fromkeys(("rope_theta", "local_base_frequency", "global_base_frequency"), THETA),
    **dict.fromkeys(("local_scale_factor", "global_scale_factor"), STRETCH),
    **dict.fromkeys(("attn_logits_soft_cap", "final_logit_softcap"), NOT_NEGATIVE),
}
_Described = tuple[TransformerConfig, Family, Iterator[tuple[str, Place]]]


def describe_tunix(model: Any) -> tuple[Source, dict[str, Array]]:
    """Returns a description of a tunix model, and its arrays by path.

    Raises:
      TypeError: the model is not one of tunix's, or cannot be expressed.
      ValueError: it has options that cannot be expressed.
    """
    name = _family(model)
    if name == "gemma4":
        raise TypeError(_GEMMA4)
    if name not in _FAMILIES:
        raise TypeError(
            f"model must be one of tunix.models: {', '.join(_FAMILIES)}, got {type(model).__module__}."
            f"{type(model).__name__}; for parameters of MaxText pass config too"
        )
    config, family, places = _FAMILIES[name](model)
    found = flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    arrays = {path: x for path, x in found if not path.startswith(_UNUSED)}
    table = arrays.get("embedder.input_embedding")  # if it is missing, that is said below
    dtype = _fields(model).get("dtype") or getattr(table, "dtype", jnp.float32)
    dtype = validate.dtype_of("tunix's dtype", dtype, DTYPES)
    return Source(f"tunix's {name}", config, family.map_params, tuple(places), dtype), arrays


def _fields(model: Any) -> Fields:
    """Returns a reader of the model's configuration."""
    return Fields("tunix", getattr(model, "config", None), _SETTINGS, "pass a model with its own ModelConfig")


def _family(model: Any) -> str:
    """Returns the package of `tunix.models` that defines a model's class, or a base of it."""
    for kind in type(model).__mro__:
        if kind.__module__.startswith("tunix.models."):
            return kind.__module__.split(".")[2]
    return ""


def _sizes(config: Fields, vocab_size: int, tied: bool) -> dict[str, Any]:
    """Returns the part of a `config.json` that all families have in common."""
    return {
        "num_hidden_layers": config.need("num_layers"),
        "hidden_size": config.need("embed_dim"),
        "intermediate_size": config.need("hidden_dim"),
        "num_attention_heads": config.need("num_heads"),
        "num_key_value_heads": config.need("num_kv_heads"),
        "head_dim": config.need("head_dim"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
    }


def _describe_llama3(model: Any) -> _Described:
    config = _fields(model)
    return _read_llama(LLAMA, model, config.need("weight_tying")), LLAMA, _llama_places(config)


def _describe_qwen2(model: Any) -> _Described:
    config = _fields(model)
    return _read_llama(QWEN2, model, config.need("use_tied_embedding")), QWEN2, _llama_places(config)


def _describe_qwen3(model: Any) -> _Described:
    config = _fields(model)
    if (experts := config.get("num_experts")) is not None:
        raise TypeError(
            f"the built-in transformer has dense feed-forward layers, got num_experts={experts}: pass the "
            "model to jaxspec.foreign.from_tunix"
        )
    return _read_llama(QWEN3, model, config.need("use_tied_embedding")), QWEN3, _llama_places(config)


def _read_llama(family: Family, model: Any, tied: bool) -> TransformerConfig:
    config = _fields(model)
    more = {"rms_norm_eps": config.need("norm_eps"), "rope_theta": _theta_of(model)}
    return family.read_config(_sizes(config, config.need("vocab_size"), tied) | more)


def _theta_of(model: Any) -> float:
    """Returns the base of the rotation: a default, if attention does not pass on the configuration's."""
    own = _fields(model).need("rope_theta")
    block = type(model.layers[0].attn).block
    if "apply_rope" not in block.__code__.co_names or "rope_theta" in block.__code__.co_names:
        return float(own)
    used = _default_of(block, "rope_theta")
    if used != own:
        warnings.warn(
            f"{type(model).__name__} of tunix rotates by rope_theta={used}, although its configuration says "
            f"{own}; it is adopted as it runs",
            stacklevel=6,
        )
    return float(used)


def _default_of(block: Any, name: str) -> Any:
    """Returns the default of an argument of the `apply_rope` that a function calls."""
    return inspect.signature(block.__globals__["apply_rope"]).parameters[name].default


def _llama_places(config: Fields) -> Iterator[tuple[str, Place]]:
    yield "embed_tokens.weight", Place("embedder.input_embedding")
    yield "norm.weight", Place("final_norm.w")
    yield "lm_head.weight", Place("lm_head.w", move=(0, -1))
    for layer in range(config.need("num_layers")):
        name, path = f"layers.{layer}.self_attn", f"layers.{layer}.attn"
        for part in "qkv":
            yield f"{name}.{part}_proj.weight", Place(f"{path}.{part}_proj.w", move=(0, -1))
            yield f"{name}.{part}_proj.bias", Place(f"{path}.{part}_bias")
        for part in "qk":
            yield f"{name}.{part}_norm.weight", Place(f"{path}.{part}_norm.w")
        yield f"{name}.o_proj.weight", Place(f"{path}.o_proj.w", move=(-1, 0))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"layers.{layer}.{norm}.weight", Place(f"layers.{layer}.{norm}.w")
        yield from _mlp_places(layer)


def _mlp_places(layer: int) -> Iterator[tuple[str, Place]]:
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = f"layers.{layer}.mlp.{part}"
        yield f"{name}.weight", Place(f"{name}.kernel", move=(0, -1))


def _describe_gemma(model: Any) -> _Described:
    config = _fields(model)
    lacking = ("attn_logits_soft_cap", "final_logit_softcap", "use_post_attn_norm", "use_post_ffw_norm")
    if found := [f"{name}={value}" for name in lacking if (value := config.get(name))]:
        raise TypeError(
            f"Gemma 2 cannot be adopted: the built-in transformer has no logit caps, got {', '.join(found)}. If no "
            "layer has a window, use jaxspec.foreign.from_tunix; else load the weights into DeepMind's own model, and "
            "use jaxspec.foreign.from_gemma"
        )
    theta = _default_of(type(model.layers[0].attn).block, "max_wavelength")
    more = {"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": _GEMMA_EPS, "rope_theta": theta}
    read = LLAMA.read_config(_sizes(config, config.need("num_embed"), True) | more)
    windows = tuple(config.need("sliding_window_size") if _is_local(layer) else None for layer in model.layers)
    read = dataclasses.replace(read, windows=windows, embedding_scale=config.need("embed_dim") ** 0.5)
    return read, LLAMA, _gemma_places(config, _GEMMA_NORMS, _add_one)


def _describe_gemma3(model: Any) -> _Described:
    config = _fields(model)
    ropes = {
        LOCAL: _rope(config.need("local_base_frequency"), config.need("local_scale_factor")),
        GLOBAL: _rope(config.need("global_base_frequency"), config.need("global_scale_factor")),
    }
    more = {
        "rms_norm_eps": _GEMMA_EPS,
        "sliding_window": config.need("sliding_window_size"),
        "layer_types": [LOCAL if _is_local(layer) else GLOBAL for layer in model.layers],
        "rope_parameters": ropes,
        "query_pre_attn_scalar": model.layers[0].attn.query_pre_attn_scalar ** -2,
    }
    read = GEMMA3.read_config(_sizes(config, config.need("num_embed"), True) | more)
    return read, GEMMA3, _gemma_places(config, _GEMMA3_NORMS)


def _rope(theta: float | int, factor: float | int) -> dict[str, Any]:
    return {"rope_theta": theta} | ({} if factor == 1 else {"rope_type": "linear", "factor": factor})


def _is_local(layer: Any) -> bool:
    return layer.attn.attn_type.name == "LOCAL_SLIDING"


def _gemma_places(
    config: Fields, norms: Mapping[str, str], change: Callable[[Array], Array] | None = None
) -> Iterator[tuple[str, Place]]:
    """Yields the places of Gemma's tensors; `change` is applied to the scales of norms."""
    yield "embed_tokens.weight", Place("embedder.input_embedding")
    yield "norm.weight", Place("final_norm.scale", change=change)
    joined = config.need("num_heads") == config.need("num_kv_heads")
    for layer in range(config.need("num_layers")):
        name, path = f"layers.{layer}.self_attn", f"layers.{layer}.attn"
        for number, part in enumerate("qkv"):
            place = Place(f"{path}.qkv_einsum.w", ((0, number, 3),), (1, -1))
            if not joined:
                place = Place(f"{path}.kv_einsum.w", ((0, number - 1, 2),), (1, -1))
            if not joined and part == "q":
                place = Place(f"{path}.q_einsum.w", move=(1, -1))
            yield f"{name}.{part}_proj.weight", place
        yield f"{name}.o_proj.weight", Place(f"{path}.attn_vec_einsum.w", move=(-1, 0))
        for theirs, own in norms.items():
            yield f"layers.{layer}.{theirs}.weight", Place(f"layers.{layer}.{own}.scale", change=change)
        yield from _mlp_places(layer)


def _add_one(scale: Array) -> Array:
    """Adds one to a scale, which Gemma stores as its difference from one."""
    return scale.astype(jnp.float32) + 1


_FAMILIES: Mapping[str, Callable[[Any], _Described]] = {
    "llama3": _describe_llama3,
    "qwen2": _describe_qwen2,
    "qwen3": _describe_qwen3,
    "gemma": _describe_gemma,
    "gemma3": _describe_gemma3,
}
