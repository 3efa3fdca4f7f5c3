"""Adds a trained exit after a target's first layers."""

from collections.abc import Mapping
from typing import Any

from etils import epy as _epy

from jaxspec.heads.base import HeadKind

with _epy.lazy_api_imports(globals()):
    from jaxspec.contrib.exit_head.head import (
        EarlyExitHead as EarlyExitHead,
        early_exit_drafter as early_exit_drafter,
        init as init,
    )
    from jaxspec.contrib.exit_head.training import EarlyExitRecipe as EarlyExitRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    del tensors
    return config.get("model_type") == "jaxspec-early-exit"


KIND = HeadKind(
    "early-exit",
    __name__,
    _recognizes,
    head_at="head.EarlyExitHead",
    read_at="checkpoint.read_early_exit",
    init_at="head.init",
    drafter_at="head.early_exit_drafter",
    recipe_at="training.EarlyExitRecipe",
)
