"""Drafts all tokens of a round in one pass: DFlash (2602.06036) and DSpark."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec._lazy import lazy
from jaxspec.heads.base import HeadKind

if TYPE_CHECKING:
    from jaxspec.heads.dflash.drafter import DFlashDrafter as DFlashDrafter
    from jaxspec.heads.dflash.head import DFlashHead as DFlashHead
    from jaxspec.heads.dflash.head import init as init
    from jaxspec.heads.dflash.training import DFlashRecipe as DFlashRecipe
    from jaxspec.heads.dflash.tree import DFlashTreeDrafter as DFlashTreeDrafter


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether this is the configuration of DFlash, DSpark or the built-in layout of them."""
    del tensors
    return "dflash_config" in config or {"block_size", "target_layer_ids"} <= set(config)


KIND = HeadKind(
    "dflash",
    __name__,
    _recognizes,
    head_at="head.DFlashHead",
    read_at="checkpoint.read_dflash",
    init_at="head.init",
    drafter_at="drafter.DFlashDrafter",
    recipe_at="training.DFlashRecipe",
)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "drafter": ("DFlashDrafter",),
        "head": ("DFlashHead", "init"),
        "training": ("DFlashRecipe",),
        "tree": ("DFlashTreeDrafter",),
    },
)
