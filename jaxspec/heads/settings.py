"""Checks what heads say in their folders besides a decoder's sizes: of their targets and their draft vocabularies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoints.huggingface import read_integers
from jaxspec.core.files import FileFormatError
from jaxspec.families.settings import SettingError, integer, list_of

# Heads, blocks and layers are made one by one before tensors are looked at.
PARTS = integer(1, 128)
STATES = list_of(integer(-1, 10_000), "layers, integers of at least -1")


def need_setting(config: Mapping[str, Any], key: str, kind: str) -> Any:
    """Returns a setting that the configuration of a `kind` of head must have.

    Raises:
      SettingError: it has none, or an empty one.
    """
    if not config.get(key):
        raise SettingError(key, f"the configuration of this {kind} lacks {key!r}")
    return config[key]


def check_trained_for(config: Mapping[str, Any], key: str, name: str, got: int) -> None:
    """Checks that a head was trained for a target like the one at hand.

    Args:
      config: its configuration, which may leave `key` out.
      key: what says so.
      name: what that counts, in words.
      got: the number of the target at hand.

    Raises:
      SettingError: it was trained for another one.
    """
    if config.get(key) not in (None, got):
        problem = f"it was trained for a target with {name} {config[key]}, got one with {got}; load that target"
        raise SettingError(key, problem)


def check_states(states: tuple[int, ...], layers: int, key: str) -> None:
    """Checks that a target has the states that a head reads; `i` enters layer `i`.

    Raises:
      SettingError: it has not.
    """
    if not all(0 <= state <= layers for state in states):
        problem = f"it reads states {list(states)} (i enters layer i), the target has 0 to {layers}"
        raise SettingError(key, f"{problem}; load the target that it was trained for")


def is_rising(ids: np.ndarray, vocab_size: int) -> bool:
    """Returns whether a draft vocabulary is a rising list of tokens of the target's `vocab_size`, and not empty."""
    if ids.dtype.kind != "i" or ids.ndim != 1 or not ids.size:
        return False
    return bool((np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < vocab_size)


def read_vocabulary(folder: Path, name: str, vocab_size: int) -> np.ndarray:
    """Reads a draft vocabulary: `int32[n]`.

    Args:
      folder: a head's.
      name: the tensor's.
      vocab_size: how many tokens the target has.

    Raises:
      FileFormatError: it is no rising list of the target's tokens.
    """
    ids = read_integers(folder, [name])[name]
    if not is_rising(ids, vocab_size):
        problem = f"{name} is no rising list of the target's {vocab_size} tokens"
        raise FileFormatError(folder / "model.safetensors", name, problem)
    return ids.astype(np.int32)
