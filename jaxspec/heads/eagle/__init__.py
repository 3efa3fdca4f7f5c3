"""Drafts with EAGLE-1 (2401.15077), EAGLE-3 (2503.01840) or DeepSeek-V3's multi-token prediction (2412.19437)."""

import re
from collections.abc import Mapping
from typing import Any

from etils import epy as _epy

from jaxspec.heads.base import HeadKind

with _epy.lazy_api_imports(globals()):
    from jaxspec.heads.eagle.checkpoint import write_eagle as write_eagle
    from jaxspec.heads.eagle.head import EagleDrafter as EagleDrafter, EagleHead as EagleHead, init as init
    from jaxspec.heads.eagle.mtp import init_mtp as init_mtp
    from jaxspec.heads.eagle.training import EagleRecipe as EagleRecipe

_MTP = re.compile(r"^(?:(?:model\.)?layers\.\d+\.eh_proj|mtp_layers\.0\.input_proj)\.weight$")


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Returns whether these are tensors of EAGLE-1 or EAGLE-3."""
    del config
    return "fc.weight" in tensors and any(name.startswith(("midlayer.", "layers.0.")) for name in tensors)


def _recognizes_mtp(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Returns whether these tensors include a multi-token prediction module."""
    del config
    return any(_MTP.match(name) for name in tensors)


KIND = HeadKind(
    "eagle",
    __name__,
    _recognizes,
    head_at="head.EagleHead",
    read_at="checkpoint.read_eagle",
    init_at="head.init",
    drafter_at="head.EagleDrafter",
    recipe_at="training.EagleRecipe",
)

MTP = HeadKind(
    "mtp",
    __name__,
    _recognizes_mtp,
    head_at="head.EagleHead",
    read_at="mtp.read_mtp",
    init_at="mtp.init_mtp",
    drafter_at="head.EagleDrafter",
)
