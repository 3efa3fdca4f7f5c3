"""Drafts all tokens of a round in one pass: DFlash (2602.06036) and DSpark."""

from collections.abc import Mapping
from typing import Any

from etils import epy as _epy

from jaxspec.heads.base import HeadKind

with _epy.lazy_api_imports(globals()):
    from jaxspec.heads.dflash.constructions.base import Construction as Construction
    from jaxspec.heads.dflash.constructions.beam import Beam as Beam
    from jaxspec.heads.dflash.constructions.best_paths import BestPaths as BestPaths
    from jaxspec.heads.dflash.constructions.by_cost import BestPathsByCost as BestPathsByCost
    from jaxspec.heads.dflash.constructions.families import Families as Families
    from jaxspec.heads.dflash.constructions.gap_families import GapFamilies as GapFamilies
    from jaxspec.heads.dflash.constructions.table import CONSTRUCTIONS as CONSTRUCTIONS
    from jaxspec.heads.dflash.head import DFlashDrafter as DFlashDrafter, DFlashHead as DFlashHead
    from jaxspec.heads.dflash.initial import init as init
    from jaxspec.heads.dflash.training import (
        DFlash2Recipe as DFlash2Recipe,
        DFlashRecipe as DFlashRecipe,
        DSparkRecipe as DSparkRecipe,
    )
    from jaxspec.heads.dflash.tree import DFlashTreeDrafter as DFlashTreeDrafter


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Returns whether this is a configuration of DFlash, DSpark or jaxspec's own layout, and not P-EAGLE's."""
    if "mask_hidden" in tensors:
        return False
    return "dflash_config" in config or {"block_size", "target_layer_ids"} <= set(config)


KIND = HeadKind(
    "dflash",
    __name__,
    _recognizes,
    head_at="head.DFlashHead",
    read_at="checkpoint.read_dflash",
    init_at="initial.init",
    drafter_at="head.DFlashDrafter",
    recipe_at="training.DFlashRecipe",
    variants_at={"dspark": "training.DSparkRecipe", "dflash2": "training.DFlash2Recipe"},
)
