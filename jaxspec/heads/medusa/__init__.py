"""Drafts with independent heads: Medusa (2401.10774)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec._lazy import lazy
from jaxspec.heads.base import HeadKind

if TYPE_CHECKING:
    from jaxspec.heads.medusa.drafter import MedusaDrafter as MedusaDrafter
    from jaxspec.heads.medusa.head import MedusaHead as MedusaHead
    from jaxspec.heads.medusa.head import init as init
    from jaxspec.heads.medusa.training import MedusaRecipe as MedusaRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether this is the configuration of Medusa heads."""
    del tensors
    return "medusa_num_heads" in config or config.get("model_type") == "medusa"


KIND = HeadKind(
    "medusa",
    __name__,
    _recognizes,
    head_at="head.MedusaHead",
    read_at="checkpoint.read_medusa",
    init_at="head.init",
    drafter_at="drafter.MedusaDrafter",
    recipe_at="training.MedusaRecipe",
)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "drafter": ("MedusaDrafter",),
        "head": ("MedusaHead", "init"),
        "training": ("MedusaRecipe",),
    },
)
