"""Drafts with independent heads: Medusa (2401.10774)."""

from collections.abc import Mapping
from typing import Any

from etils import epy as _epy

from jaxspec.heads.base import HeadKind

with _epy.lazy_api_imports(globals()):
    from jaxspec.heads.medusa.head import MedusaDrafter as MedusaDrafter, MedusaHead as MedusaHead, init as init
    from jaxspec.heads.medusa.training import MedusaRecipe as MedusaRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Returns whether this is a configuration of Medusa heads."""
    del tensors
    return "medusa_num_heads" in config or config.get("model_type") == "medusa"


KIND = HeadKind(
    "medusa",
    __name__,
    _recognizes,
    head_at="head.MedusaHead",
    read_at="checkpoint.read_medusa",
    init_at="head.init",
    drafter_at="head.MedusaDrafter",
    recipe_at="training.MedusaRecipe",
)
