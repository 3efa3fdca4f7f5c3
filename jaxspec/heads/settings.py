"""Checks what the configurations of heads say besides a decoder's sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
