"""Describes MaxText's models and the places of their weights: Llama 2 and 3, Qwen 2 and 3, Gemma 3.

Follows MaxText's code at e591f30c (2026-08-22): `layers`, `models`, and the tables of names in
`checkpoint_conversion/utils/param_mapping.py` and `integration/tunix/weight_mapping`.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.core import meta
from jax import Array

from jaxspec.core import validate
from jaxspec.families.common import GLOBAL, LOCAL
from jaxspec.families.gemma import GEMMA3
from jaxspec.families.llama import LLAMA
from jaxspec.families.settings import COUNT, EPSILON, FLAG, LAYERS, SIZE, STRETCH, TEXT, TEXTS, THETA, Setting
from jaxspec.foreign.fields import DTYPES, Fields
from jaxspec.foreign.places import Place, Source, flatten
from jaxspec.nn.config import TransformerConfig

_PATTERN = 6  # layers in Gemma's pattern, the last of which has no window
_GEMMA_EPS = 1e-6  # hard-coded in its layers, not in its last norm
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu_pytorch_tanh"}
_UNUSED = ("vision_encoder.", "audio_encoder.")
_NEEDED = {
    "num_experts": 1,
    "mlp_bias": False,
    "fused_qkv": False,
    "fused_mlp": False,
    "attention_type": "global",
    "attention_sink": False,
    "attn_logits_soft_cap": 0,
    "final_logits_soft_cap": 0,
    "qk_norm_with_scale": True,
    "rope_min_timescale": 1,
    "use_mrope": False,
    "use_untrainable_positional_embedding": False,
    "trainable_position_size": -1,
}
_DEFAULTS = {
    "decoder_block": "llama2",
    "dtype": "bfloat16",
    "local_rope_max_timescale": -1,
    "logits_via_embedding": False,
    "mlp_activations": ("silu", "linear"),
    "model_name": "default",
    "normalization_layer_epsilon": 1e-5,
    "normalize_embedding_logits": True,
    "param_scan_axis": 1,
    "rope_linear_scaling_factor": 1.0,
    "rope_max_timescale": 10_000,
    "rope_type": "default",
    "rope_use_scale": True,
    "scan_layers": True,
}
_SETTINGS = {
    **dict.fromkeys(("decoder_block", "model_name", "rope_type"), TEXT),
    **dict.fromkeys(("vocab_size", "emb_dim", "mlp_dim", "num_query_heads", "num_kv_heads", "head_dim"), SIZE),
    "num_decoder_layers": LAYERS,
    "sliding_window_size": SIZE,
    "param_scan_axis": COUNT,
    "normalization_layer_epsilon": EPSILON,
    "rope_max_timescale": THETA,
    "local_rope_max_timescale": Setting(f"-1, or {THETA.expected}", lambda x: x == -1 or THETA.accepts(x)),
    "rope_linear_scaling_factor": STRETCH,
    "mlp_activations": Setting("a list of texts", lambda x: isinstance(x, list | tuple) and TEXTS.accepts(list(x))),
    **dict.fromkeys(("attention_bias", "logits_via_embedding", "normalize_embedding_logits", "scan_layers"), FLAG),
    **dict.fromkeys(("use_qk_norm", "rope_use_scale", "use_post_attn_norm", "use_post_ffw_norm"), FLAG),
}
_NORMS = {
    "input_layernorm": "pre_self_attention_layer_norm",
    "post_attention_layernorm": "post_self_attention_layer_norm",
}
_GEMMA_NORMS = {
    "input_layernorm": "pre_self_attention_norm",
    "post_attention_layernorm": "post_self_attention_norm",
    "pre_feedforward_layernorm": "pre_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclasses.dataclass(frozen=True)
class _Block:
    """Describes what MaxText's code for a decoder block does regardless of the configuration.

    Attributes:
      norms: the norms of a layer, from a checkpoint's names to MaxText's.
      windows: whether most layers have a window, as in Gemma.
      neighbors: whether it may rotate pairs of neighbors, as Llama 3.1 does, instead of halves.
      scales: whether it scales scores; if not, the scale is in the query weights.
      biases, head_norms: whether it has them if the configuration says so.
    """

    norms: Mapping[str, str]
    windows: bool = False
    neighbors: bool = False
    scales: bool = True
    biases: bool = False
    head_norms: bool = False


_BLOCKS = {
    "llama2": _Block(_NORMS, neighbors=True, scales=False),
    "qwen2": _Block(_NORMS, biases=True, head_norms=True),
    "qwen3": _Block(_NORMS, head_norms=True),
    "gemma3": _Block(_GEMMA_NORMS, windows=True),
}


@dataclasses.dataclass(frozen=True)
class _Change:
    """Converts heads that rotate neighbors to halves, then multiplies by a factor and adds an offset, in float32."""

    factor: float = 1.0
    offset: float = 0.0
    interleaved: bool = False

    def __call__(self, x: Array) -> Array:
        if self.interleaved:
            x = jnp.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
        if (self.factor, self.offset) == (1.0, 0.0):
            return x
        return x.astype(jnp.float32) * self.factor + self.offset


def describe_maxtext(params: Any, config: Any) -> tuple[Source, dict[str, Array]]:
    """Returns a description of a MaxText model, and its arrays by path.

    Args:
      params: the model's parameters, boxed or not; a collection or an adapter may enclose the decoder.
      config: an object or a mapping with the keys of MaxText's configuration; keys with defaults may be missing.

    Raises:
      TypeError: the parameters are not a tree, or the model is of another kind.
      ValueError: the model has an option that the built-in transformer lacks.
    """
    tree = nnx.state(params, nnx.Param) if isinstance(params, nnx.Module) else params
    tree = nnx.to_pure_dict(tree) if isinstance(tree, nnx.State) else meta.unbox(tree)
    while isinstance(tree, Mapping) and "decoder" not in tree and ("params" in tree or "base" in tree):
        tree = tree.get("params", tree.get("base"))
    if not isinstance(tree, Mapping) or "decoder" not in tree:
        raise TypeError(
            f"with config, model must be MaxText's parameters, a tree with 'decoder' and 'token_embedder', got "
            f"{sorted(tree) if isinstance(tree, Mapping) else type(params).__name__}; pass state.params"
        )
    arrays = {path: x for path, x in flatten(tree) if not path.startswith(_UNUSED)}
    options = _Options(config)
    _check(options)
    read, family = (_read_gemma3(options), GEMMA3) if options.block.windows else (_read_llama(options), LLAMA)
    # If MaxText divides the logits of a tied table, the table is divided instead, and lookups undo that.
    normalized = read.tied_head and options["normalize_embedding_logits"]
    read = dataclasses.replace(read, embedding_scale=read.width**0.5 if normalized else 1.0)
    dtype = validate.dtype_of("MaxText's dtype", options["dtype"], DTYPES)
    return Source(f"MaxText's {options.name}", read, family.map_params, tuple(_places(read, options)), dtype), arrays


class _Options(Fields):
    """Reads options by name; missing ones have the values of MaxText's `base.yml`."""

    def __init__(self, config: Any):
        super().__init__("MaxText", config, _SETTINGS, "pass the object that pyconfig makes")

    def __getitem__(self, name: str) -> Any:
        # A model's own file has the sizes before a global scale.
        return self.need(name, self.get(f"base_{name}", _DEFAULTS.get(name)))

    @property
    def name(self) -> str:
        """The name of the decoder block."""
        return self["decoder_block"]

    @property
    def block(self) -> _Block:
        return _BLOCKS[self.name]


def _check(options: _Options) -> None:
    """Raises an error if the built-in transformer cannot express these options."""
    if options.name not in _BLOCKS:
        raise TypeError(
            f"a MaxText model of decoder_block={options.name!r} cannot be adopted; supported: {', '.join(_BLOCKS)}"
        )
    for name, needed in _NEEDED.items():
        if (found := options.get(name)) not in (None, needed):
            raise ValueError(
                f"the built-in transformer cannot express MaxText's {name}={found!r}, expected {needed!r}: pass a "
                "model with that"
            )
    activation = tuple(options["mlp_activations"])
    if len(activation) != 2 or activation[0] not in _ACTIVATIONS or activation[1] != "linear":
        raise ValueError(
            f"mlp_activations must be one of {', '.join(_ACTIVATIONS)}, and 'linear', got {list(activation)}: the "
            "built-in transformer has such feed-forward layers"
        )
    if _interleaved(options) and not options.block.neighbors:
        known = ", ".join(name for name, block in _BLOCKS.items() if block.neighbors)
        raise ValueError(f"rope_type 'llama3.1' is supported only for decoder_block {known}, got {options.name!r}")


def _interleaved(options: _Options) -> bool:
    """Returns whether heads are rotated by Llama's rotary embedding, whose pairs are neighbors."""
    return options["model_name"].startswith("llama3.1") or options["rope_type"].lower().startswith("llama3.1")


def _sizes(options: _Options) -> dict[str, Any]:
    """Returns the part of a `config.json` that all families have in common."""
    return {
        "num_hidden_layers": options["num_decoder_layers"],
        "hidden_size": options["emb_dim"],
        "intermediate_size": options["mlp_dim"],
        "num_attention_heads": options["num_query_heads"],
        "num_key_value_heads": options["num_kv_heads"],
        "head_dim": options["head_dim"],
        "vocab_size": options["vocab_size"],
        "tie_word_embeddings": options["logits_via_embedding"],
        "rms_norm_eps": options["normalization_layer_epsilon"],
    }


def _read_llama(options: _Options) -> TransformerConfig:
    more = {"hidden_act": _ACTIVATIONS[options["mlp_activations"][0]], "rope_parameters": _rope(options)}
    read = LLAMA.read_config(_sizes(options) | more)
    return dataclasses.replace(
        read,
        qkv_bias=options.block.biases and bool(options.get("attention_bias")),
        query_key_norm=options.block.head_norms and bool(options.get("use_qk_norm")),
    )


def _rope(options: _Options) -> dict[str, Any]:
    settings = {"rope_theta": options["rope_max_timescale"]}
    if _interleaved(options):
        if not options["rope_use_scale"]:
            return settings
        # Hard-coded: Llama 3.2, whose factor is 32, also gets 8.
        factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        return settings | {"rope_type": "llama3", "original_max_position_embeddings": 8192} | factors
    if options["rope_type"].lower() != "default":
        raise ValueError(f"rope_type must be 'default' or 'llama3.1', got {options['rope_type']!r}; pass such a model")
    factor = options["rope_linear_scaling_factor"]
    return settings if factor == 1 else settings | {"rope_type": "linear", "factor": factor}


def _read_gemma3(options: _Options) -> TransformerConfig:
    if not math.isclose(eps := options["normalization_layer_epsilon"], _GEMMA_EPS):
        raise ValueError(f"normalization_layer_epsilon of Gemma 3 must be {_GEMMA_EPS}, as in its layers, got {eps}")
    for name in ("use_post_attn_norm", "use_post_ffw_norm"):
        if not options.get(name):
            raise ValueError(f"{name} of Gemma 3 must be True, got {options.get(name)}; pass a model with these norms")
    layers, is_27b = options["num_decoder_layers"], options["model_name"] == "gemma3-27b"
    local = options["local_rope_max_timescale"]
    rope = _rope(options)
    more = {
        "hidden_activation": _ACTIVATIONS[options["mlp_activations"][0]],
        "layer_types": [LOCAL if (layer + 1) % _PATTERN else GLOBAL for layer in range(layers)],
        "sliding_window": options["sliding_window_size"],
        "rope_parameters": {LOCAL: {"rope_theta": local if local > 0 else rope["rope_theta"]}, GLOBAL: rope},
        "query_pre_attn_scalar": (options["emb_dim"] // options["num_query_heads"] if is_27b else options["head_dim"]),
    }
    return GEMMA3.read_config(_sizes(options) | more)


def _places(config: TransformerConfig, options: _Options) -> Iterator[tuple[str, Place]]:
    # Gemma's family adds one to scales; in MaxText's scales, it is already added.
    block, axis = options.block, options["param_scan_axis"]
    scale = _Change(offset=-1.0 if block.windows else 0.0)
    yield "embed_tokens.weight", Place("token_embedder.embedding", change=_Change(1 / config.embedding_scale))
    yield "norm.weight", Place("decoder.decoder_norm.scale", change=scale)
    yield "lm_head.weight", Place("decoder.logits_dense.kernel", move=(0, -1))
    interleaved = _interleaved(options)
    changes = {
        "query": _Change(1.0 if block.scales else config.head_dim**0.5, interleaved=interleaved),
        "key": _Change(interleaved=interleaved),
    }
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        path, take = _layer(layer, config.num_layers, block, axis if options["scan_layers"] else None)
        for part in ("query", "key", "value"):
            theirs, own = f"{name}.self_attn.{part[0]}_proj", f"{path}.self_attention.{part}"
            yield f"{theirs}.weight", Place(f"{own}.kernel", take, (0, -1), changes.get(part))
            yield f"{theirs}.bias", Place(f"{own}.bias", take)
            yield f"{name}.self_attn.{part[0]}_norm.weight", Place(f"{own}_norm.scale", take, change=scale)
        yield f"{name}.self_attn.o_proj.weight", Place(f"{path}.self_attention.out.kernel", take, (-1, 0))
        for theirs, own in {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}.items():
            yield f"{name}.mlp.{theirs}.weight", Place(f"{path}.mlp.{own}.kernel", take, (0, -1))
        for theirs, own in block.norms.items():
            yield f"{name}.{theirs}.weight", Place(f"{path}.{own}.scale", take, change=scale)


def _layer(layer: int, layers: int, block: _Block, axis: int | None) -> tuple[str, tuple[tuple[int, int, int], ...]]:
    """Returns the path of a layer, and its index along `axis` in arrays that hold many layers."""
    if axis is None:
        return f"decoder.layers_{layer}", ()
    if not block.windows:
        return "decoder.layers", ((axis, layer, layers),)
    if layer < (scanned := layers - layers % _PATTERN):
        return f"decoder.layers.layers_{layer % _PATTERN}", ((axis, layer // _PATTERN, layers // _PATTERN),)
    return f"decoder.layers_remainder.layers_{layer - scanned}", ()
