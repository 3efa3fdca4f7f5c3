"""Shares code among families that resemble Llama: settings of `config.json`, parameters, GGUF metadata."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxspec.families.base import LazyTensor, ParamMapping, Shape
from jaxspec.families.ropes import read_one_rope, write_scaling
from jaxspec.families.settings import COUNT, MULTIPLIER, NOT_NEGATIVE, PATTERN, POSITIVE, SIZE, TEXT, SettingError
from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import Rope

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}

Activation = Literal["silu", "gelu_tanh"]
MapNorm = Callable[[tuple[str, ...], str, int], ParamMapping]
# The settings of sizes that have no relation to others.
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def read_gated_config(
    config: Mapping[str, Any],
    *,
    windows: tuple[int | None, ...],
    ropes: tuple[Rope | None, ...] | None = None,
    activation: str = "hidden_act",
    **options: Any,
) -> TransformerConfig:
    """Reads the configuration of Llama-like decoders: RMS norms, gated feed-forward layers, rotary embeddings.

    Args:
      config: all settings of the family.
      windows: each layer's attention window.
      ropes: each layer's rotary embedding; `None` reads one for all.
      activation: the setting that names the activation.
      **options: further fields of `TransformerConfig`.

    Raises:
      SettingError: a setting is missing or not supported, or contradicts another one.
    """
    layers, width = need(config, "num_hidden_layers"), need(config, "hidden_size")
    heads = need(config, "num_attention_heads")
    kv_heads = config["num_key_value_heads"] or heads
    head_size: int = config["head_dim"] or divided(config, "hidden_size", "num_attention_heads")
    if heads % kv_heads:
        raise SettingError(
            "num_key_value_heads or num_attention_heads", f"expected a divisor of {heads}, got {kv_heads}"
        )
    if head_size % 2:
        raise SettingError("head_dim", f"expected an even number, whose halves are rotated, got {head_size}")
    each: tuple[Rope | None, ...] = (read_one_rope(config),) * layers if ropes is None else ropes
    for scaling in {rope.scaling for rope in each if rope and rope.scaling}:
        if scaling.kind == "longrope" and len(scaling.factors) != head_size // 2:
            problem = f"expected {head_size // 2} factors, one for each pair of a head, got {len(scaling.factors)}"
            raise SettingError("rope_scaling", problem)
    return TransformerConfig(
        vocab_size=need(config, "vocab_size"),
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_size,
        mlp_width=need(config, "intermediate_size"),
        context_length=config["max_position_embeddings"],
        ropes=each,
        windows=windows,
        norm_eps=config["rms_norm_eps"],
        activation=read_activation(config, activation),
        tied_head=config["tie_word_embeddings"],
        **options,
    )


def need(config: Mapping[str, Any], key: str) -> Any:
    """Returns a required setting.

    Raises:
      SettingError: it is missing.
    """
    if config.get(key) is None:
        raise SettingError(key, f"the configuration of model_type {config.get('model_type')!r} lacks {key!r}")
    return config[key]


def divided(config: Mapping[str, Any], key: str, by: str) -> int:
    """Returns a size divided by a number of heads.

    Raises:
      SettingError: there is a remainder, or one of them is missing.
    """
    size, count = need(config, key), need(config, by)
    if size % count:
        raise SettingError(f"{by} or {key}", f"expected a divisor of {size}, got {count}")
    return size // count


def read_activation(config: Mapping[str, Any], key: str) -> Activation:
    """Returns the activation that a setting names.

    Raises:
      SettingError: it is not supported.
    """
    if config[key] not in _ACTIVATIONS:
        raise SettingError(key, f"unsupported activation {config[key]!r}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[config[key]]


def read_windows(kinds: Sequence[str], window: int | None, layers: int) -> tuple[int | None, ...]:
    """Returns each layer's window, given the layers' types, the size of a window and the number of layers.

    Raises:
      SettingError: a type is not supported, there are more or fewer than layers, or there is no size.
    """
    if unknown := set(kinds) - {LOCAL, GLOBAL}:
        raise SettingError("layer_types", f"unsupported {sorted(unknown)}; supported: {LOCAL}, {GLOBAL}")
    if len(kinds) != layers:
        raise SettingError(
            "layer_types or num_hidden_layers", f"expected one type per layer, got {len(kinds)} for {layers}"
        )
    if LOCAL in kinds and not window:
        raise SettingError("sliding_window", f"expected an integer of at least 1 for sliding_attention, got {window}")
    return tuple(window if kind == LOCAL else None for kind in kinds)


def write_llama_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns a decoder's sizes and rotary embedding as a `config.json` of Llama.

    Raises:
      ValueError: it has no rotary embedding.
    """
    rope = config.ropes[0]
    if rope is None:
        raise ValueError(f"expected a decoder with rotary embeddings, got one with learned positions: {config}")
    return {
        "model_type": "llama",
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.activation.replace("gelu_tanh", "gelu_pytorch_tanh"),
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling is None else write_scaling(rope.scaling),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def map_tensor(path: tuple[str, ...], name: str, shape: Shape) -> ParamMapping:
    """Maps a tensor to a parameter, unchanged."""
    return ParamMapping(path, ((name, shape),), identity, by_rows=True)


def map_norm(
    path: tuple[str, ...], name: str, width: int, build: Callable[[np.ndarray], np.ndarray] | None = None
) -> ParamMapping:
    """Maps a tensor to a scale or bias of a normalization; `build=None` keeps its values."""
    return ParamMapping(path, ((name, (width,)),), build or identity, is_norm=True)


def map_attention(
    config: TransformerConfig, path: tuple[str, ...], name: str, norm: MapNorm, width: int
) -> Iterator[ParamMapping]:
    """Maps the parameters of an attention layer.

    Args:
      config: the decoder's hyperparameters.
      path: the layer's path in the parameter tree.
      name: the prefix of its tensors' names.
      norm: maps the scales of its normalizations, like `map_norm`.
      width: the width of the input of queries, keys and values.
    """
    query_rows, key_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    group = functools.partial(group_heads, heads=config.num_kv_heads, head_dim=config.head_dim)
    for own, rows in {"query": {"q": query_rows}, "key_value": {"k": key_rows, "v": key_rows}}.items():
        weights = tuple((f"{name}.{part}_proj.weight", (count, width)) for part, count in rows.items())
        yield ParamMapping((*path, own, "kernel"), weights, group, axis=1, by_rows=True)
        if config.qkv_bias:
            biases = tuple((f"{name}.{part}_proj.bias", (count,)) for part, count in rows.items())
            yield ParamMapping((*path, own, "bias"), biases, group, axis=1)
    if config.query_key_norm:
        for own, theirs, rows in (("query", "q", query_rows), ("key", "k", key_rows)):
            size = rows if config.norm_all_heads else config.head_dim
            yield norm((*path, f"{own}_norm", "scale"), f"{name}.{theirs}_norm.weight", size)
    if config.sinks:
        heads = config.num_kv_heads, config.queries_per_kv_head
        sinks = ((f"{name}.sinks", (config.num_heads,)),)
        yield ParamMapping((*path, "sinks"), sinks, lambda x: x.reshape(heads), is_norm=True)
    yield map_tensor((*path, "output", "kernel"), f"{name}.o_proj.weight", (config.width, query_rows))
    if config.output_bias:
        yield map_tensor((*path, "output", "bias"), f"{name}.o_proj.bias", (config.width,))


def map_mlp(config: TransformerConfig, path: tuple[str, ...], name: str) -> Iterator[ParamMapping]:
    """Maps the parameters of a gated feed-forward layer at `path`; `name` is the prefix of its tensors' names."""
    inner, width, parts = config.mlp_width, config.width, ("gate_proj", "up_proj")
    kernels = tuple((f"{name}.{part}.weight", (inner, width)) for part in parts)
    yield ParamMapping((*path, "gate_up", "kernel"), kernels, _stack, by_rows=True)
    yield map_tensor((*path, "down", "kernel"), f"{name}.down_proj.weight", (width, inner))
    if config.mlp_bias:
        biases = tuple((f"{name}.{part}.bias", (inner,)) for part in parts)
        yield ParamMapping((*path, "gate_up", "bias"), biases, _stack)
        yield map_tensor((*path, "down", "bias"), f"{name}.down_proj.bias", (width,))


def _map_dense(config: TransformerConfig, layer: int) -> Iterator[ParamMapping]:
    return map_mlp(config, (f"layer_{layer}", "mlp"), f"layers.{layer}.mlp")


def map_gated_params(
    config: TransformerConfig,
    norms: Mapping[str, str],
    norm: MapNorm = map_norm,
    feed_forward: Callable[[TransformerConfig, int], Iterator[ParamMapping]] = _map_dense,
) -> Iterator[ParamMapping]:
    """Maps every parameter of a Llama-like decoder.

    Args:
      config: the decoder's hyperparameters.
      norms: maps the names of a layer's normalizations to those of the checkpoint.
      norm: maps the scale of a normalization.
      feed_forward: maps the parameters of the feed-forward block of a layer, given its number.
    """
    yield map_tensor(("embedding",), "embed_tokens.weight", (config.vocab_size, config.width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"layers.{layer}"
        for own, theirs in norms.items():
            yield norm((path, own, "scale"), f"{name}.{theirs}.weight", config.width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", norm, config.width)
        yield from feed_forward(config, layer)
    yield norm(("final_norm", "scale"), "norm.weight", config.width)
    if not config.tied_head:
        yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, config.width))


def identity(x: Any) -> Any:
    """Returns a tensor unchanged: a NumPy array of a checkpoint, or a JAX array of a foreign model."""
    return x


def group_heads(*parts: Any, heads: int, head_dim: int) -> Any:
    """Reshapes parts `[g*r*d, ...]` to `[g, r, d, ...]`, and concatenates them along `r`."""
    grouped = [part.reshape(heads, -1, head_dim, *part.shape[1:]) for part in parts]
    return parts[0].__array_namespace__().concatenate(grouped, axis=1)


def _stack(*parts: Any) -> Any:
    return parts[0].__array_namespace__().stack(parts)


LLAMA_ARCHITECTURE = "llama"
_GGUF_ROTATED = re.compile(r"\.attn_([qk])\.")
GGUF_SETTINGS = {
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
GGUF_TENSORS = {
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
_GGUF_YARN = {
    "original_context_length": SIZE,
    **dict.fromkeys(("attn_factor", "yarn_beta_fast", "yarn_beta_slow"), POSITIVE),
}
# The allowed values of further keys, without the architecture prefix.
FURTHER_SETTINGS = {
    **dict.fromkeys(("attention.value_length", "rope.dimension_count"), SIZE),
    **dict.fromkeys(("attention.sliding_window", "expert_count"), COUNT),
    **dict.fromkeys(("attention.scale", "residual_scale", "embedding_scale", "logit_scale"), MULTIPLIER),
    "attention.sliding_window_pattern": PATTERN,
    "rope.scaling.type": TEXT,
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), NOT_NEGATIVE),
    **{f"rope.scaling.{key}": setting for key, setting in _GGUF_YARN.items()},
}
# Divisors of the rotary frequencies, stored as a tensor; they become a setting.
ROPE_FACTORS = "rope_freqs.weight"
# Llama 3's cut-offs, which determined the file's factors and are not stored.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_rope_scaling(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    """Returns the `rope_scaling` of `config.json`, if the rotary embedding is scaled.

    Args:
      settings: the metadata by key, without the architecture prefix.
      config: the part of `config.json` read so far.
      tensors: the file's tensors by their GGUF names.

    Raises:
      SettingError: the rotary embedding is not supported.
    """
    head_dim = config.get("head_dim") or divided(config, "hidden_size", "num_attention_heads")
    said_by = "head_dim" if "head_dim" in config else "num_attention_heads"
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            problem = f"keys have {head_dim} numbers per head; values of another length and partial rotary embedding"
            raise SettingError(f"{key} or {said_by}", f"{settings[key]}, but {problem} are not supported")
    # As in llama.cpp: a factor without a type is linear, and files of 2023 have another name for it.
    kind = settings.get("rope.scaling.type", "linear")
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear"))
    if kind not in ("none", "linear", "yarn"):
        raise SettingError("rope.scaling.type", f"unsupported {kind!r}; supported: none, linear, yarn")
    if ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[ROPE_FACTORS].read(), np.float32)
        return {"rope_scaling": _read_llama3_scaling(factors, settings.get("rope.freq_base", 10000.0), head_dim)}
    if kind == "yarn" and factor:
        original, attention, fast, slow = (settings.get(f"rope.scaling.{key}") for key in _GGUF_YARN)
        return {
            "rope_scaling": {
                **{"rope_type": kind, "factor": factor, "original_max_position_embeddings": original},
                # llama.cpp multiplies YaRN's own factor by it.
                "attention_factor": attention and attention * (1 + 0.1 * math.log(max(factor, 1))),
                **{"beta_fast": fast, "beta_slow": slow},
            }
        }
    if kind == "linear" and factor:
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    return {}


def _read_llama3_scaling(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """Finds the Llama 3 scaling that divides the frequencies by these factors."""
    factor = float(factors.max())
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    rotations = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    span = _LLAMA3["high_freq_factor"] - _LLAMA3["low_freq_factor"]
    unscaled = np.clip((rotations - _LLAMA3["low_freq_factor"]) / span, 0, 1)
    expected = 1 / (unscaled + (1 - unscaled) / factor)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise SettingError(ROPE_FACTORS, "holds other factors than those of Llama 3, the only supported ones")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def restore_rotated(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    """Undoes llama.cpp's order of the rows of queries and keys, given a tensor's GGUF name and `config.json`."""
    if not (match := _GGUF_ROTATED.search(name)):
        return tensor
    heads = config["num_attention_heads"]
    if match[1] == "k":
        heads = config.get("num_key_value_heads") or heads
    return tensor.reorder(lambda rows: to_half_split(rows, heads))


def to_half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a query or key projection from rotating adjacent pairs to rotating halves.

    Args:
      rows: `[heads * head_dim, ...]`; each head has the rows `0, d/2, 1, d/2 + 1, ...`.
      heads: the number of heads.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
