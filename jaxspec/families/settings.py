"""Checks the settings of models: one table of types and ranges for every file that holds them.

Those are `config.json` of a model or a head, a GGUF file's metadata once it has the names of `config.json`, and what a
saved model says of itself. A field that is not in the table is one that nothing reads.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxspec.core.files import FileFormatError

_MOST = 2**31 - 1  # what int32 holds
_MOST_LAYERS = 10_000  # lists of one entry a layer are made before tensors are looked at
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38  # of float32


class SettingError(ValueError):
    """Signals that a setting is missing, wrong or not supported.

    Attributes:
      key: the setting; with dots, if it stands in another one; "a or b" where either may be wrong.
      problem: what is wrong with it.
    """

    def __init__(self, key: str, problem: str):
        """Says what is wrong with the setting `key`."""
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}")


@contextlib.contextmanager
def settings_of(path: str | os.PathLike[str], name_of: Callable[[str], str] = str, advice: str = "") -> Iterator[None]:
    """Turns a `SettingError` that is raised inside into a `FileFormatError` of the file that holds the setting.

    Args:
      path: the file.
      name_of: returns what the file calls a setting.
      advice: what to do.
    """
    try:
        yield
    except SettingError as error:
        place = " or ".join(name_of(key) for key in error.key.split(" or "))
        raise FileFormatError(path, place, error.problem, advice) from error


@dataclasses.dataclass(frozen=True)
class Setting:
    """Specifies what a setting may be.

    Attributes:
      expected: that, in words.
      accepts: tells whether a value is that.
      optional: whether it may be null, which is as if it were left out.
      inside: of a setting that is an object, its own settings.
    """

    expected: str
    accepts: Callable[[Any], bool]
    optional: bool = False
    inside: Mapping[str, "Setting"] | None = None

    def or_null(self) -> "Setting":
        """Returns the same setting, which may also be null."""
        return dataclasses.replace(self, expected=f"{self.expected}, or null", optional=True)


def integer(low: int, high: int = _MOST) -> Setting:
    """Returns a setting that is an integer from `low` to `high`, and no truth value."""
    return Setting(f"an integer from {low} to {high}", lambda x: type(x) is int and low <= x <= high)


def number(low: float, high: float, expected: str) -> Setting:
    """Returns a setting that is a number between `low` and `high`, which NaN is not."""
    return Setting(expected, lambda x: type(x) in (int, float) and low < x < high)


def list_of(each: Setting, what: str) -> Setting:
    """Returns a setting that is a list, each of its entries as `each`; `what` calls them by name."""
    return Setting(f"a list of {what}", lambda x: isinstance(x, list) and all(each.accepts(one) for one in x))


def table_of(inside: Mapping[str, Setting]) -> Setting:
    """Returns a setting that is an object with these settings."""
    return Setting("an object", lambda x: isinstance(x, Mapping), inside=inside)


SIZE, COUNT, LAYERS = integer(1), integer(0), integer(1, _MOST_LAYERS)
POSITIVE = number(_SMALLEST, _LARGEST, "a number above 0 that float32 holds")
NUMBER = number(-_LARGEST, _LARGEST, "a number that float32 holds")
NOT_NEGATIVE = Setting(
    "a number of at least 0 that float32 holds", lambda x: type(x) in (int, float) and 0 <= x < _LARGEST
)
EPSILON = number(_SMALLEST, 1.0, "a number between 0 and 1")
FLAG = Setting("true or false", lambda x: isinstance(x, bool))
TEXT = Setting("a text", lambda x: isinstance(x, str))
TEXTS = list_of(TEXT, "texts")
IDS = Setting("a token id of at least 0, or a list of them", lambda x: COUNT.accepts(x) or _ID_LIST.accepts(x))
_ID_LIST = list_of(COUNT, "token ids")

_ROPE = {
    "rope_theta": POSITIVE,
    **dict.fromkeys(("rope_type", "type"), TEXT.or_null()),
    "partial_rotary_factor": POSITIVE.or_null(),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor"), POSITIVE.or_null()),
    "original_max_position_embeddings": SIZE.or_null(),
}
# Gemma has one rotary embedding for each type of layer.
_ROPES = _ROPE | dict.fromkeys(("full_attention", "sliding_attention"), table_of(_ROPE).or_null())

SETTINGS: dict[str, Setting] = {
    "model_type": TEXT,
    "architectures": TEXTS.or_null(),
    # Of those that a model must have, null is answered by its family: the configuration lacks them.
    **dict.fromkeys(("vocab_size", "hidden_size", "n_embd", "intermediate_size", "n_inner"), SIZE.or_null()),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), LAYERS.or_null()),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "head_dim"), SIZE.or_null()),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), SIZE),
    **dict.fromkeys(("sliding_window", "sliding_window_pattern", "_sliding_window_pattern"), SIZE.or_null()),
    "max_window_layers": COUNT,
    "layer_types": TEXTS.or_null(),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), EPSILON),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "query_pre_attn_scalar"), POSITIVE),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), table_of(_ROPES).or_null()),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), TEXT.or_null()),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"), FLAG),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), NOT_NEGATIVE.or_null()),
    "use_bidirectional_attention": FLAG.or_null(),
    **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention"), FLAG),
    **dict.fromkeys(("num_nextn_predict_layers", "num_blocks"), COUNT.or_null()),
    "eos_token_id": IDS.or_null(),
}

# The fields of `TransformerConfig`, by which a saved model says what it is.
_SAVED_ROPE = {
    "theta": POSITIVE,
    "scaling": table_of(
        {
            "kind": TEXT,
            **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor"), POSITIVE),
            "original_context_length": SIZE,
        }
    ).or_null(),
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
    "embedding_scale": POSITIVE,
    "attention_scale": POSITIVE.or_null(),
}


def check_settings(values: Mapping[str, Any], table: Mapping[str, Setting] | None = None, prefix: str = "") -> None:
    """Checks the settings that the table knows; which of them there must be is for their reader to say.

    Args:
      values: the settings, such as the contents of `config.json`.
      table: what each may be; `None` is the table of `config.json`.
      prefix: what stands in front of their names in an error.

    Raises:
      SettingError: one is of another type, or out of range; the first in the table's order.
    """
    for key, setting in (SETTINGS if table is None else table).items():
        if key not in values or (values[key] is None and setting.optional):
            continue
        if not setting.accepts(values[key]):
            raise SettingError(prefix + key, f"expected {setting.expected}, got {_shown(values[key])}")
        if setting.inside is not None:
            check_settings(values[key], setting.inside, f"{prefix}{key}.")


def check_saved(values: Mapping[str, Any]) -> None:
    """Checks what a saved model says of itself: the fields of `TransformerConfig`, each of which it must have.

    Raises:
      SettingError: one is missing, of another type or out of range.
    """
    if lacking := [key for key in SAVED if key not in values]:
        raise SettingError(lacking[0], "is missing")
    check_settings(values, SAVED)
    for layer, rope in enumerate(values["ropes"]):
        if rope is not None:
            check_settings(rope, _SAVED_ROPE, f"ropes.{layer}.")


def _shown(value: Any) -> str:
    """Returns a value's text, cut where it is long: a damaged one may have any length."""
    try:
        text = repr(value)
    except ValueError:  # of an integer of thousands of digits
        return "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
