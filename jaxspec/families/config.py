"""From the `config.json` of a Hugging Face model to a `TransformerConfig`, one function a family."""

from collections.abc import Mapping
from typing import Any

from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import Rope, RopeScaling

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def transformer_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face configuration.

    Args:
      config: the contents of `config.json`. Rotary settings may stand in `rope_theta` and
        `rope_scaling` or, as transformers 5 writes them, in `rope_parameters`.

    Raises:
      ValueError: the architecture, its rotary embedding or one of its options is not supported, or
        a setting is missing.
    """
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        raise ValueError(
            f"unsupported architecture {kind!r} (architectures: {config.get('architectures')}); "
            f"supported model types: {', '.join(sorted(_FAMILIES))}"
        )
    return _FAMILIES[kind](config)


def _llama(config: Mapping[str, Any]) -> TransformerConfig:
    bias = bool(config.get("attention_bias", False))
    return _gated(
        config,
        windows=(None,) * _need(config, "num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _mistral(config: Mapping[str, Any]) -> TransformerConfig:
    return _gated(config, windows=(config.get("sliding_window"),) * _need(config, "num_hidden_layers"))


def _qwen2(config: Mapping[str, Any]) -> TransformerConfig:
    return _gated(config, windows=_qwen_windows(config), qkv_bias=True)


def _qwen3(config: Mapping[str, Any]) -> TransformerConfig:
    bias = bool(config.get("attention_bias", False))
    return _gated(
        config,
        windows=_qwen_windows(config),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=True,
        head_dim=128,
    )


def _gemma3(config: Mapping[str, Any]) -> TransformerConfig:
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if config.get(key):
            raise ValueError(f"unsupported option {key}={config[key]!r} of gemma3_text; it must be unset")
    layers, width = _need(config, "num_hidden_layers"), _need(config, "hidden_size")
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    kinds = config.get("layer_types") or [_LOCAL if (i + 1) % pattern else _GLOBAL for i in range(layers)]
    return _gated(
        config,
        windows=_windows(kinds, config.get("sliding_window", 4096)),
        ropes=_gemma3_ropes(config, kinds),
        activation=_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        eps=1e-6,
        head_dim=256,
        tied=True,
        context_length=131072,
        query_key_norm=True,
        post_norms=True,
        embedding_scale=width**0.5,
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
    )


def _gpt2(config: Mapping[str, Any]) -> TransformerConfig:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(key):
            raise ValueError(f"unsupported option {key}={config[key]!r} of gpt2; it must be false")
    if not config.get("scale_attn_weights", True):
        raise ValueError("unsupported option scale_attn_weights=False of gpt2; it must be true")
    layers, heads, width = (_need(config, key) for key in ("n_layer", "n_head", "n_embd"))
    return TransformerConfig(
        vocab_size=_need(config, "vocab_size"),
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        mlp_width=config.get("n_inner") or 4 * width,
        context_length=config.get("n_positions", 1024),
        ropes=(None,) * layers,
        windows=(None,) * layers,
        norm="layer",
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation=_activation(config, "activation_function", "gelu_new"),
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_head=config.get("tie_word_embeddings", True),
    )


_FAMILIES = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
}


def _gated(
    config,
    *,
    windows,
    ropes=None,
    activation=None,
    eps=1e-6,
    head_dim=None,
    tied=False,
    context_length=2048,
    **options,
) -> TransformerConfig:
    """What Llama and its descendants share. Keyword values are the family's own defaults."""
    layers, width = _need(config, "num_hidden_layers"), _need(config, "hidden_size")
    heads = _need(config, "num_attention_heads")
    return TransformerConfig(
        vocab_size=_need(config, "vocab_size"),
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or head_dim or width // heads,
        mlp_width=_need(config, "intermediate_size"),
        context_length=config.get("max_position_embeddings", context_length),
        ropes=ropes or (_rope(_rope_settings(config)),) * layers,
        windows=windows,
        norm_eps=config.get("rms_norm_eps", eps),
        activation=activation or _activation(config, "hidden_act", "silu"),
        tied_head=config.get("tie_word_embeddings", tied),
        **options,
    )


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"the configuration of this {config['model_type']} model lacks {key!r}")
    return config[key]


def _activation(config, key: str, default: str) -> str:
    name = config.get(key) or default
    if name not in _ACTIVATIONS:
        raise ValueError(f"unsupported activation {key}={name!r}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _windows(kinds, window) -> tuple[int | None, ...]:
    unknown = set(kinds) - {_LOCAL, _GLOBAL}
    if unknown:
        raise ValueError(f"unsupported layer types {sorted(unknown)}; supported: {_LOCAL}, {_GLOBAL}")
    if _LOCAL in kinds and window is None:
        raise ValueError("the configuration has sliding_attention layers but no 'sliding_window'")
    return tuple(window if kind == _LOCAL else None for kind in kinds)


def _qwen_windows(config) -> tuple[int | None, ...]:
    layers = _need(config, "num_hidden_layers")
    if not config.get("use_sliding_window", False):
        return (None,) * layers
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [_GLOBAL if i < first else _LOCAL for i in range(layers)]
    return _windows(kinds, config.get("sliding_window", 4096))


def _rope_settings(config) -> Mapping[str, Any]:
    """The rotary settings in the spelling of transformers 5, from either spelling."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), **settings}


def _gemma3_ropes(config, kinds) -> tuple[Rope, ...]:
    nested = config.get("rope_parameters") or {}
    settings = {
        _LOCAL: {"rope_theta": config.get("rope_local_base_freq", 10000.0), **(nested.get(_LOCAL) or {})},
        _GLOBAL: {
            "rope_theta": config.get("rope_theta", 1_000_000.0),
            **(nested.get(_GLOBAL) or config.get("rope_scaling") or {}),
        },
    }
    ropes = {kind: _rope(one) for kind, one in settings.items()}
    return tuple(ropes[kind] for kind in kinds)


def _rope(settings: Mapping[str, Any]) -> Rope:
    theta = float(settings["rope_theta"])
    if settings.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial rotary embedding (partial_rotary_factor other than 1) is not supported")
    match settings.get("rope_type", settings.get("type", "default")):
        case "default" | None:
            return Rope(theta)
        case "linear":
            return Rope(theta, RopeScaling("linear", float(settings["factor"])))
        case "llama3":
            return Rope(
                theta,
                RopeScaling(
                    "llama3",
                    float(settings["factor"]),
                    float(settings["low_freq_factor"]),
                    float(settings["high_freq_factor"]),
                    int(settings["original_max_position_embeddings"]),
                ),
            )
        case kind:
            raise ValueError(f"unsupported rotary embedding {kind!r}; supported: default, linear, llama3")
