"""Adds a trained exit after a target's first layers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec._lazy import lazy
from jaxspec.heads.base import HeadKind

if TYPE_CHECKING:
    from jaxspec.contrib.exit_head.drafter import early_exit_drafter as early_exit_drafter
    from jaxspec.contrib.exit_head.head import EarlyExitHead as EarlyExitHead
    from jaxspec.contrib.exit_head.head import init as init
    from jaxspec.contrib.exit_head.training import EarlyExitRecipe as EarlyExitRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether this is the configuration of an early exit."""
    del tensors
    return config.get("model_type") == "jaxspec-early-exit"


KIND = HeadKind(
    "early-exit",
    __name__,
    _recognizes,
    head_at="head.EarlyExitHead",
    read_at="checkpoint.read_early_exit",
    init_at="head.init",
    drafter_at="drafter.early_exit_drafter",
    recipe_at="training.EarlyExitRecipe",
)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "drafter": ("early_exit_drafter",),
        "head": ("EarlyExitHead", "init"),
        "training": ("EarlyExitRecipe",),
    },
)
