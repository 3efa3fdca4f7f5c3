"""Provides the classes that tunix's rollouts derive from: tunix's own if it is installed, else equal ones.

Without tunix nothing can call a rollout but tests and a custom trainer, for which the equal ones suffice.
"""

import abc
import dataclasses
import importlib
import importlib.util
from typing import Any

import numpy as np
from jax import Array

_MODULE = "tunix.rl.rollout.base_rollout"


@dataclasses.dataclass
class OwnOutput:
    """Holds what a rollout returns, with the fields of tunix's `RolloutOutput`."""

    text: list[str]
    logits: list[Array]
    tokens: list[np.ndarray]
    left_padded_prompt_tokens: np.ndarray
    logprobs: list[np.ndarray] | None


@dataclasses.dataclass
class OwnConfig:
    """Holds the fields of tunix's `RolloutConfig` that a rollout here reads, with its defaults."""

    max_tokens_to_generate: int = 64
    temperature: float = 0.9
    top_p: float | None = 1.0
    top_k: int | None = None
    seed: Array | None = None
    max_prompt_length: int = 64
    kv_cache_size: int = 1024
    data_type: Any = None
    eos_tokens: list[int] | None = None
    return_logprobs: bool = False


class OwnRollout(abc.ABC):
    """Has the abstract members of tunix's `BaseRollout`."""

    @abc.abstractmethod
    def __init__(self, **kwargs: Any) -> None: ...

    @abc.abstractmethod
    def generate(self, prompts: list[str], rollout_config: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def get_per_token_logps(self, prompt_tokens: Array, completion_tokens: Array) -> Array: ...

    @abc.abstractmethod
    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None: ...

    @abc.abstractmethod
    def pad_id(self) -> int: ...

    @abc.abstractmethod
    def eos_id(self) -> int: ...

    @abc.abstractmethod
    def model(self) -> Any: ...


def base_classes() -> tuple[Any, Any]:
    """Returns the base class of rollouts, and the class of their results."""
    if importlib.util.find_spec("tunix") is None:
        return OwnRollout, OwnOutput
    module = importlib.import_module(_MODULE)
    return module.BaseRollout, module.RolloutOutput
