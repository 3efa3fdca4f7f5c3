"""Checks the settings of heads that decoders do not have: those about their targets and draft vocabularies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoints.huggingface import read_integers
from jaxspec.families.settings import SETTINGS, SettingError, integer, list_of
from jaxspec.io.files import FileFormatError

# Bounded, as heads, blocks and layers are created one by one before tensors are read.
PARTS = integer(1, 128)
STATES = list_of(integer(-1, 10_000), "layers, integers of at least -1")


# Settings that every class of transformers or of training code writes, and that change no draft.
_IRRELEVANT = (
    *("_attn_implementation", "_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("attention_dropout", "initializer_range", "pretraining_tp", "return_dict", "quantization_config", "is_decoder"),
    *("bos_token_id", "pad_token_id", "embd_pdrop", "attn_pdrop", "resid_pdrop", "use_return_dict", "torchscript"),
    *("num_anchors", "loss_decay", "speculators_config", "speculators_version", "chunk_size_feed_forward", "id2label"),
    *(
        "label2id",
        "embed_requires_grad",
        "attention_mode",
        "output_attentions",
        "output_hidden_states",
        "tokenizer_class",
    ),
    *("_attn_implementation_autoset", "attn_implementation"),
)


def need_setting(config: Mapping[str, Any], key: str, kind: str) -> Any:
    """Returns a required setting of the configuration of a `kind` of head.

    Raises:
      SettingError: the setting is missing or empty.
    """
    if not config.get(key):
        raise SettingError(key, f"the configuration of this {kind} lacks {key!r}")
    return config[key]


def check_trained_for(config: Mapping[str, Any], key: str, name: str, got: int) -> None:
    """Checks that a head was trained for a target like the current one.

    Args:
      config: the head's configuration, which may lack `key`.
      key: the setting to check.
      name: the quantity in words.
      got: the target's value.

    Raises:
      SettingError: the head was trained for a target with another value.
    """
    if config.get(key) not in (None, got):
        problem = f"it was trained for a target with {name} {config[key]}, got one with {got}; load that target"
        raise SettingError(key, problem)


def check_states(states: tuple[int, ...], layers: int, key: str) -> None:
    """Checks that a target has the states that a head reads; `i` enters layer `i`.

    Raises:
      SettingError: it does not.
    """
    if not all(0 <= state <= layers for state in states):
        problem = f"it reads states {list(states)} (i enters layer i), the target has 0 to {layers}"
        raise SettingError(key, f"{problem}; load the target that it was trained for")


def check_known(config: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> None:
    """Checks that every setting of a head is understood; unknown ones may only be off: null, false, zero or empty.

    Args:
      config: the head's configuration.
      known: the settings that its reader understands; those of decoders and of transformers' classes are known too.
      prefix: the prefix of their names in errors.

    Raises:
      SettingError: a setting is not understood, so that the head might draft badly without a sign of it.
    """
    understood = {*known, *SETTINGS, *_IRRELEVANT}
    for key, value in config.items():
        if value and key not in understood:
            raise SettingError(prefix + key, f"this setting of heads is not supported, got {value!r:.80}")


def is_rising(ids: np.ndarray, vocab_size: int) -> bool:
    """Returns whether `ids` is a nonempty, strictly increasing list of tokens of a vocabulary of `vocab_size`."""
    if ids.dtype.kind != "i" or ids.ndim != 1 or not ids.size:
        return False
    return bool((np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < vocab_size)


def read_vocabulary(folder: Path, name: str, vocab_size: int) -> np.ndarray:
    """Reads a draft vocabulary.

    Args:
      folder: the head's folder.
      name: the tensor's name.
      vocab_size: the size of the target's vocabulary.

    Returns:
      The target's token ids, increasing, `int32[n]`.

    Raises:
      FileFormatError: the tensor is not an increasing list of the target's tokens.
    """
    ids = read_integers(folder, [name])[name]
    if not is_rising(ids, vocab_size):
        problem = f"{name} is not an increasing list of the target's {vocab_size} tokens"
        raise FileFormatError(folder / "model.safetensors", name, problem)
    return ids.astype(np.int32)


def read_offsets(folder: Path, tensors: dict[str, Any], vocab_size: int) -> np.ndarray:
    """Pops a draft vocabulary `d2t` and `t2d` from a head's tensors.

    Args:
      folder: the head's folder.
      tensors: its tensors by name. `d2t int64[n]` is the offset from a draft token's index to its id in the target;
        `t2d bool[v]`, which may be missing, is whether each of the target's tokens is one of them.
      vocab_size: the size of the target's vocabulary, all of which is the draft vocabulary without `d2t`.

    Returns:
      The target's token ids, increasing, `int32[n]`.

    Raises:
      FileFormatError: the tensors are not an increasing list of the target's tokens.
    """
    integers = read_integers(folder, [name for name in ("d2t", "t2d") if tensors.pop(name, None) is not None])
    if "d2t" not in integers:
        return np.arange(vocab_size, dtype=np.int32)
    ids = integers["d2t"] + np.arange(len(integers["d2t"]))
    known = integers.get("t2d")
    if not is_rising(ids, vocab_size) or (known is not None and not np.array_equal(np.flatnonzero(known), ids)):
        problem = "d2t and t2d do not describe one increasing list of the target's tokens"
        raise FileFormatError(folder / "model.safetensors", "d2t", problem)
    return ids.astype(np.int32)
