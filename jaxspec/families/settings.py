"""Checks the settings of models: one table of types and ranges for every file that holds them.

These files are `config.json` of a model or a head, a GGUF file's metadata under the names of `config.json`, and the
configuration of a saved model. Fields outside the table are never read.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxspec.io.files import FileFormatError

_MOST = 2**31 - 1  # the largest int32
_MOST_LAYERS = 10_000  # lists with an entry per layer are made before tensors are read
_MOST_EXPERTS = 100_000  # nor are these lists, with an entry for each expert of each layer
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38  # the range of float32


class SettingError(ValueError):
    """Signals that a setting is missing, wrong or not supported.

    Attributes:
      key: the setting; with dots if it is nested; "a or b" if either may be wrong.
      problem: what is wrong with it.
    """

    def __init__(self, key: str, problem: str):
        """Composes the message about the setting `key`."""
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}")


@contextlib.contextmanager
def settings_of(path: str | os.PathLike[str], name_of: Callable[[str], str] = str, advice: str = "") -> Iterator[None]:
    """Turns a `SettingError` inside the context into a `FileFormatError` of the setting's file.

    Args:
      path: the file.
      name_of: returns the file's name for a setting.
      advice: how to fix it.
    """
    try:
        yield
    except SettingError as error:
        place = " or ".join(name_of(key) for key in error.key.split(" or "))
        raise FileFormatError(path, place, error.problem, advice) from error


@dataclasses.dataclass(frozen=True)
class Setting:
    """Specifies the values that a setting may have.

    Attributes:
      expected: a description of them.
      accepts: returns whether a value is allowed.
      optional: whether it may be null, which is the same as missing.
      inside: the nested settings, if it is an object.
    """

    expected: str
    accepts: Callable[[Any], bool]
    optional: bool = False
    inside: Mapping[str, "Setting"] | None = None

    def or_null(self) -> "Setting":
        """Allows null too."""
        return dataclasses.replace(self, expected=f"{self.expected}, or null", optional=True)


def integer(low: int, high: int = _MOST) -> Setting:
    """Specifies an integer from `low` to `high`, not a bool."""
    return Setting(f"an integer from {low} to {high}", lambda x: type(x) is int and low <= x <= high)


def number(low: float, high: float, expected: str) -> Setting:
    """Specifies a number between `low` and `high`, not NaN."""
    return Setting(expected, lambda x: type(x) in (int, float) and low < x < high)


def list_of(each: Setting, what: str) -> Setting:
    """Specifies a list of `each`; `what` names the entries."""
    return Setting(f"a list of {what}", lambda x: isinstance(x, list) and all(each.accepts(one) for one in x))


def table_of(inside: Mapping[str, Setting]) -> Setting:
    """Specifies an object with these settings."""
    return Setting("an object", lambda x: isinstance(x, Mapping), inside=inside)


SIZE, COUNT, LAYERS = integer(1), integer(0), integer(1, _MOST_LAYERS)
POSITIVE = number(_SMALLEST, _LARGEST, "a number above 0 that float32 holds")
NUMBER = number(-_LARGEST, _LARGEST, "a number that float32 holds")
NOT_NEGATIVE = Setting(
    "a number of at least 0 that float32 holds", lambda x: type(x) in (int, float) and 0 <= x < _LARGEST
)
# Beyond such bounds a value is damaged, and a model with it writes nonsense. Published multipliers: 0.0078 to 78.
EPSILON = number(_SMALLEST, 0.0101, "a number above 0, and at most 0.01 (published models have 1e-6 to 1e-5)")
MULTIPLIER = number(0.99e-6, 1.001e6, "a number from 1e-6 to 1e6")
FLAG = Setting("true or false", lambda x: isinstance(x, bool))
TEXT = Setting("a text", lambda x: isinstance(x, str))
TEXTS = list_of(TEXT, "texts")
_FLAGS = list_of(FLAG, "true and false")
PATTERN = Setting(f"{SIZE.expected}, or {_FLAGS.expected}", lambda x: SIZE.accepts(x) or _FLAGS.accepts(x))
IDS = Setting("a token id of at least 0, or a list of them", lambda x: COUNT.accepts(x) or _ID_LIST.accepts(x))
_ID_LIST = list_of(COUNT, "token ids")

# Published decoders have bases from 10,000 to 1e11; with one outside of these bounds, nothing rotates, or all alike.
THETA = number(99.0, 1.001e12, "a number from 100 to 1e12 (published models have 1e4 to 1e11)")
# Its logarithm is a divisor.
_ORIGINAL = integer(2)
STRETCH = number(0.0099, 10_001.0, "a number from 0.01 to 10,000 (published models have 1 to 100)")
_TURNS = Setting(
    "0 or a number from 0.01 to 10,000", lambda x: STRETCH.accepts(x) or (type(x) in (int, float) and x == 0)
)
_ROPE_SIZES = {"partial_rotary_factor": POSITIVE.or_null(), "original_max_position_embeddings": _ORIGINAL.or_null()}
_ROPE = {
    "rope_theta": THETA.or_null(),
    **dict.fromkeys(("rope_type", "type"), TEXT.or_null()),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "attention_factor"), STRETCH.or_null()),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), _TURNS.or_null()),
    "truncate": FLAG.or_null(),
    **dict.fromkeys(("short_factor", "long_factor"), list_of(STRETCH, "numbers from 0.01 to 10,000").or_null()),
    **_ROPE_SIZES,
}
# Gemma has one rotary embedding for each type of layer.
_ROPES = _ROPE | dict.fromkeys(("full_attention", "sliding_attention"), table_of(_ROPE).or_null())

SETTINGS: dict[str, Setting] = {
    "model_type": TEXT,
    "architectures": TEXTS.or_null(),
    # Required ones may be null here: the family reports that as missing.
    **dict.fromkeys(("vocab_size", "hidden_size", "n_embd", "intermediate_size", "n_inner"), SIZE.or_null()),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), LAYERS.or_null()),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "head_dim"), SIZE.or_null()),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), SIZE.or_null()),
    # 0 without layers that have a window is not an error.
    **dict.fromkeys(("sliding_window", "max_window_layers"), COUNT.or_null()),
    "sliding_window_pattern": SIZE.or_null(),
    "layer_types": TEXTS.or_null(),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), EPSILON.or_null()),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq"), THETA.or_null()),
    "query_pre_attn_scalar": number(
        0.99, 1.001e6, "a number from 1 to 1e6 (published models have 128 to 336)"
    ).or_null(),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), table_of(_ROPES).or_null()),
    **_ROPE_SIZES,
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), TEXT.or_null()),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"), FLAG.or_null()),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), NOT_NEGATIVE.or_null()),
    "use_bidirectional_attention": FLAG.or_null(),
    **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention"), FLAG.or_null()),
    **dict.fromkeys(("num_nextn_predict_layers", "num_blocks"), COUNT.or_null()),
    **dict.fromkeys(("num_experts", "num_local_experts"), integer(0, _MOST_EXPERTS).or_null()),
    **dict.fromkeys(("num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"), SIZE.or_null()),
    "mlp_only_layers": list_of(COUNT, "numbers of layers").or_null(),
    "norm_topk_prob": FLAG.or_null(),
    "clip_qkv": MULTIPLIER.or_null(),
    **dict.fromkeys(("swiglu_alpha", "swiglu_limit"), MULTIPLIER.or_null()),
    **dict.fromkeys(("embedding_multiplier", "attention_multiplier"), MULTIPLIER.or_null()),
    **dict.fromkeys(("residual_multiplier", "logits_scaling"), MULTIPLIER.or_null()),
    "no_rope_layers": list_of(integer(0, 1), "0 and 1").or_null(),
    "no_rope_layer_interval": SIZE.or_null(),
    "eos_token_id": IDS.or_null(),
}

# Those of every model; a family's `defaults` name the others that it reads.
SHARED = ("model_type", "architectures", "num_nextn_predict_layers", "num_blocks", "eos_token_id")

# The fields of `TransformerConfig`, the configuration of a saved model.
_SAVED_ROPE = {
    "theta": THETA,
    "scaling": table_of(
        {
            "kind": TEXT,
            **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor"), STRETCH),
            **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow"), STRETCH),
            "original_context_length": _ORIGINAL,
            "truncate": FLAG,
            "factors": list_of(STRETCH, "numbers from 0.01 to 10,000"),
        }
    ).or_null(),
}
_SAVED_EXPERTS = {
    **dict.fromkeys(("count", "per_token", "width"), SIZE),
    "normalized": FLAG,
    "dense_layers": list_of(COUNT, "numbers of layers"),
    "clamped": table_of({"limit": MULTIPLIER, "alpha": MULTIPLIER}).or_null(),
    "bias": FLAG,
}
SAVED: dict[str, Setting] = {
    **dict.fromkeys(("vocab_size", "width", "num_heads", "num_kv_heads", "head_dim", "mlp_width"), SIZE),
    "num_layers": LAYERS,
    "context_length": SIZE,
    "windows": list_of(Setting("", lambda x: x is None or SIZE.accepts(x)), "windows, integers of at least 1 or null"),
    "ropes": list_of(Setting("", lambda x: x is None or isinstance(x, Mapping)), "rotary embeddings, objects or null"),
    "norm": Setting("'rms' or 'layer'", lambda x: x in ("rms", "layer")),
    "norm_eps": EPSILON,
    "activation": Setting("'silu' or 'gelu_tanh'", lambda x: x in ("silu", "gelu_tanh")),
    **dict.fromkeys(("gated_mlp", "qkv_bias", "output_bias", "mlp_bias", "query_key_norm", "post_norms"), FLAG),
    "tied_head": FLAG,
    "embedding_scale": MULTIPLIER,
    "attention_scale": MULTIPLIER.or_null(),
    "norm_all_heads": FLAG,
    "clip_qkv": MULTIPLIER.or_null(),
    "experts": table_of(_SAVED_EXPERTS).or_null(),
    **dict.fromkeys(("sinks", "pre_norms", "rounded_embedding_scale"), FLAG),
    **dict.fromkeys(("residual_scale", "logit_scale"), MULTIPLIER),
}
# Those that models lack which were saved before there were any.
_LATER = ("norm_all_heads", "clip_qkv", "experts", "sinks", "clamped", "bias")
_LATER += ("pre_norms", "residual_scale", "logit_scale", "rounded_embedding_scale")


def check_settings(values: Mapping[str, Any], table: Mapping[str, Setting] | None = None, prefix: str = "") -> None:
    """Checks the settings that are in the table; their reader checks which are required.

    Args:
      values: the settings, such as the contents of `config.json`.
      table: the specification of each; `None` is the table of `config.json`.
      prefix: the prefix of their names in errors.

    Raises:
      SettingError: one has another type or is out of range; the first in the table's order.
    """
    for key, setting in (SETTINGS if table is None else table).items():
        if key not in values or (values[key] is None and setting.optional):
            continue
        if not setting.accepts(values[key]):
            raise SettingError(prefix + key, f"expected {setting.expected}, got {_shown(values[key])}")
        if setting.inside is not None:
            check_settings(values[key], setting.inside, f"{prefix}{key}.")


def check_saved(values: Mapping[str, Any]) -> None:
    """Checks the configuration of a saved model: the fields of `TransformerConfig`.

    Raises:
      SettingError: one is missing, of another type or out of range.
    """
    if lacking := [key for key in SAVED if key not in values and key not in _LATER]:
        raise SettingError(lacking[0], "is missing")
    check_settings(values, SAVED)
    if (experts := values.get("experts")) and (
        lacking := [key for key in _SAVED_EXPERTS if key not in experts and key not in _LATER]
    ):
        raise SettingError(f"experts.{lacking[0]}", "is missing")
    for layer, rope in enumerate(values["ropes"]):
        if rope is not None:
            check_settings(rope, _SAVED_ROPE, f"ropes.{layer}.")


def _shown(value: Any) -> str:
    """Returns a value as text, truncated: a damaged one may have any length."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
