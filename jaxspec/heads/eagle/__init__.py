"""Drafts with EAGLE-1 (2401.15077), EAGLE-3 (2503.01840), P-EAGLE (2602.01469) or multi-token prediction.

The last is of DeepSeek-V3 (2412.19437).
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec._lazy import lazy
from jaxspec.heads.base import HeadKind

if TYPE_CHECKING:
    from jaxspec.heads.eagle.checkpoint import write_eagle as write_eagle
    from jaxspec.heads.eagle.drafter import EagleDrafter as EagleDrafter
    from jaxspec.heads.eagle.head import EagleHead as EagleHead
    from jaxspec.heads.eagle.head import init as init
    from jaxspec.heads.eagle.mtp import init_mtp as init_mtp
    from jaxspec.heads.eagle.parallel import init_parallel as init_parallel
    from jaxspec.heads.eagle.training import EagleRecipe as EagleRecipe

_MTP = re.compile(r"^(?:model\.)?layers\.\d+\.eh_proj\.weight$")


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether these are tensors of EAGLE-1 or EAGLE-3."""
    del config
    return "fc.weight" in tensors and any(name.startswith(("midlayer.", "layers.0.")) for name in tensors)


def _recognizes_mtp(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether a multi-token prediction module is among these tensors."""
    del config
    return any(_MTP.match(name) for name in tensors)


KIND = HeadKind(
    "eagle",
    __name__,
    _recognizes,
    head_at="head.EagleHead",
    read_at="checkpoint.read_eagle",
    init_at="head.init",
    drafter_at="drafter.EagleDrafter",
    recipe_at="training.EagleRecipe",
)

MTP = HeadKind(
    "mtp",
    __name__,
    _recognizes_mtp,
    head_at="head.EagleHead",
    read_at="mtp_checkpoint.read_mtp",
    init_at="mtp.init_mtp",
    drafter_at="drafter.EagleDrafter",
)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "checkpoint": ("write_eagle",),
        "drafter": ("EagleDrafter",),
        "head": ("EagleHead", "init"),
        "mtp": ("init_mtp",),
        "parallel": ("init_parallel",),
        "training": ("EagleRecipe",),
    },
)
