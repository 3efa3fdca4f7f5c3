"""Reads settings of `config.json` and maps parameters, for all families that resemble Llama."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxspec.families.base import ParamMapping, Shape
from jaxspec.families.settings import SettingError
from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import Rope, RopeScaling

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}

Activation = Literal["silu", "gelu_tanh"]
MapNorm = Callable[[tuple[str, ...], str, int], ParamMapping]
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
    ropes: tuple[Rope, ...] | None = None,
    activation: Activation | None = None,
    eps: float = 1e-6,
    head_dim: int | None = None,
    tied: bool = False,
    context_length: int = 2048,
    **options: Any,
) -> TransformerConfig:
    """Reads what Llama and its descendants share: RMS norms, gated feed-forward layers, rotary embeddings.

    Args:
      config: the contents of `config.json`.
      windows: each layer's window.
      ropes: each layer's rotary embedding; `None` reads one for all.
      activation: `None` reads it.
      eps, head_dim, tied, context_length: the family's defaults of what the configuration may leave out.
      **options: further fields of `TransformerConfig`.

    Raises:
      SettingError: a setting is missing or not supported, or does not go with another one.
    """
    layers, width = need(config, "num_hidden_layers"), need(config, "hidden_size")
    heads = need(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_size: int = config.get("head_dim") or head_dim or divided(config, "hidden_size", "num_attention_heads")
    if heads % kv_heads:
        raise SettingError(
            "num_key_value_heads or num_attention_heads", f"expected a divisor of {heads}, got {kv_heads}"
        )
    if head_size % 2:
        raise SettingError("head_dim", f"expected an even number, whose halves are rotated, got {head_size}")
    return TransformerConfig(
        vocab_size=need(config, "vocab_size"),
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_size,
        mlp_width=need(config, "intermediate_size"),
        context_length=config.get("max_position_embeddings", context_length),
        ropes=ropes or (_read_one_rope(config),) * layers,
        windows=windows,
        norm_eps=config.get("rms_norm_eps", eps),
        activation=activation or read_activation(config, "hidden_act", "silu"),
        tied_head=config.get("tie_word_embeddings", tied),
        **options,
    )


def need(config: Mapping[str, Any], key: str) -> Any:
    """Returns a setting that the configuration must have.

    Raises:
      SettingError: it has none.
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


def read_activation(config: Mapping[str, Any], key: str, default: str) -> Activation:
    """Returns the activation that a setting names.

    Raises:
      SettingError: it is not supported.
    """
    name = default if config.get(key) is None else config[key]
    if name not in _ACTIVATIONS:
        raise SettingError(key, f"unsupported activation {name!r}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def read_windows(kinds: Sequence[str], window: int | None, layers: int) -> tuple[int | None, ...]:
    """Returns each layer's window, given the layers' types, the size of a window and the number of layers.

    Raises:
      SettingError: a type is not supported, there are more or fewer than layers, or there is no size.
    """
    if unknown := set(kinds) - {LOCAL, GLOBAL}:
        raise SettingError("layer_types", f"unsupported {sorted(unknown)}; supported: {LOCAL}, {GLOBAL}")
    if len(kinds) != layers:
        raise SettingError(
            "layer_types or num_hidden_layers", f"expected one type a layer, got {len(kinds)} for {layers}"
        )
    if LOCAL in kinds and window is None:
        raise SettingError("sliding_window", "the configuration has sliding_attention layers but no size of a window")
    return tuple(window if kind == LOCAL else None for kind in kinds)


def read_rope(settings: Mapping[str, Any], place: str = "rope_scaling") -> Rope:
    """Returns the rotary embedding of these settings, in the spelling of transformers 5.

    Args:
      settings: `rope_theta`, `rope_type` and what that needs.
      place: the setting that holds them, which an error names.

    Raises:
      SettingError: it is not supported.
    """
    theta = float(settings["rope_theta"])
    if settings.get("partial_rotary_factor", 1.0) not in (1.0, None):
        raise SettingError(f"{place}.partial_rotary_factor", "partial rotary embedding (not 1) is not supported")
    kind = settings.get("rope_type", settings.get("type"))
    if kind is None and settings.get("factor") is not None:
        raise SettingError(f"{place}.rope_type", "rotary settings with a factor lack it; supported: linear, llama3")

    def need_of_rope(key: str) -> Any:
        if settings.get(key) is None:
            raise SettingError(f"{place}.{key}", f"rotary settings of the type {kind} lack it")
        return settings[key]

    match kind:
        case "default" | None:
            return Rope(theta)
        case "linear":
            return Rope(theta, RopeScaling("linear", float(need_of_rope("factor"))))
        case "llama3":
            low, high = float(need_of_rope("low_freq_factor")), float(need_of_rope("high_freq_factor"))
            if low >= high:
                raise SettingError(
                    f"{place}.low_freq_factor", f"expected less than high_freq_factor, {high}, got {low}"
                )
            length = need_of_rope("original_max_position_embeddings")
            return Rope(theta, RopeScaling("llama3", float(need_of_rope("factor")), low, high, length))
        case _:
            raise SettingError(f"{place}.rope_type", f"unsupported {kind!r}; supported: default, linear, llama3")


def _read_one_rope(config: Mapping[str, Any]) -> Rope:
    """Returns the rotary embedding of all layers, from the spelling of transformers 5 or the older one."""
    place = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    return read_rope({"rope_theta": config.get("rope_theta", 10000.0), **(config.get(place) or {})}, place)


def write_llama_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns a decoder's sizes and rotary embedding as Llama's `config.json` has them.

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
        "rope_scaling": None if rope.scaling is None else _write_scaling(rope.scaling),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _write_scaling(scaling: RopeScaling) -> dict[str, Any]:
    return {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context_length,
    }


def map_tensor(path: tuple[str, ...], name: str, shape: Shape) -> ParamMapping:
    """Maps a tensor to the parameter that it is."""
    return ParamMapping(path, ((name, shape),), identity, by_rows=True)


def map_norm(
    path: tuple[str, ...], name: str, width: int, build: Callable[[np.ndarray], np.ndarray] | None = None
) -> ParamMapping:
    """Maps a tensor to a scale or bias of a normalization; `build=None` leaves its values as they are."""
    return ParamMapping(path, ((name, (width,)),), build or identity, is_norm=True)


def map_attention(
    config: TransformerConfig, path: tuple[str, ...], name: str, norm: MapNorm, width: int
) -> Iterator[ParamMapping]:
    """Maps the parameters of an attention layer.

    Args:
      config: the decoder's hyperparameters.
      path: the layer's place in the parameter tree.
      name: what its tensors' names begin with.
      norm: maps the scales of its normalizations, as `map_norm` does.
      width: of what queries, keys and values are made of.
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
        yield norm((*path, "query_norm", "scale"), f"{name}.q_norm.weight", config.head_dim)
        yield norm((*path, "key_norm", "scale"), f"{name}.k_norm.weight", config.head_dim)
    yield map_tensor((*path, "output", "kernel"), f"{name}.o_proj.weight", (config.width, query_rows))
    if config.output_bias:
        yield map_tensor((*path, "output", "bias"), f"{name}.o_proj.bias", (config.width,))


def map_mlp(config: TransformerConfig, path: tuple[str, ...], name: str) -> Iterator[ParamMapping]:
    """Maps the parameters of a gated feed-forward layer at `path`, whose tensors' names begin with `name`."""
    inner, width, parts = config.mlp_width, config.width, ("gate_proj", "up_proj")
    kernels = tuple((f"{name}.{part}.weight", (inner, width)) for part in parts)
    yield ParamMapping((*path, "gate_up", "kernel"), kernels, _stack, by_rows=True)
    yield map_tensor((*path, "down", "kernel"), f"{name}.down_proj.weight", (width, inner))
    if config.mlp_bias:
        biases = tuple((f"{name}.{part}.bias", (inner,)) for part in parts)
        yield ParamMapping((*path, "gate_up", "bias"), biases, _stack)
        yield map_tensor((*path, "down", "bias"), f"{name}.down_proj.bias", (width,))


def map_gated_params(
    config: TransformerConfig, norms: Mapping[str, str], norm: MapNorm = map_norm
) -> Iterator[ParamMapping]:
    """Maps every parameter of Llama or of a descendant.

    Args:
      config: the decoder's hyperparameters.
      norms: the normalizations of a layer: names of parameters to the checkpoint's.
      norm: maps one of their scales.
    """
    yield map_tensor(("embedding",), "embed_tokens.weight", (config.vocab_size, config.width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"layers.{layer}"
        for own, theirs in norms.items():
            yield norm((path, own, "scale"), f"{name}.{theirs}.weight", config.width)
        yield from map_attention(config, (path, "attention"), f"{name}.self_attn", norm, config.width)
        yield from map_mlp(config, (path, "mlp"), f"{name}.mlp")
    yield norm(("final_norm", "scale"), "norm.weight", config.width)
    if not config.tied_head:
        yield map_tensor(("head",), "lm_head.weight", (config.vocab_size, config.width))


def identity(x: Any) -> Any:
    """Returns a tensor as it is: NumPy's of a checkpoint, or JAX's of a foreign model."""
    return x


def group_heads(*parts: Any, heads: int, head_dim: int) -> Any:
    """Reshapes `[g*r*d, ...]` to `[g, r, d, ...]`, and puts several such parts one behind the other along `r`."""
    grouped = [part.reshape(heads, -1, head_dim, *part.shape[1:]) for part in parts]
    return parts[0].__array_namespace__().concatenate(grouped, axis=1)


def _stack(*parts: Any) -> Any:
    return parts[0].__array_namespace__().stack(parts)
