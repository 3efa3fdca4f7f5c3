"""Drafts with a small decoder that also attends to the target's states: Tandem (2402.08644)."""

from collections.abc import Mapping
from typing import Any

from etils import epy as _epy

from jaxspec.heads.base import HeadKind

with _epy.lazy_api_imports(globals()):
    from jaxspec.contrib.tandem.head import TandemDrafter as TandemDrafter, TandemHead as TandemHead, init as init
    from jaxspec.contrib.tandem.training import TandemRecipe as TandemRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    del tensors
    return "JaxspecTandemHead" in (config.get("architectures") or ())


KIND = HeadKind(
    "tandem",
    __name__,
    _recognizes,
    head_at="head.TandemHead",
    read_at="checkpoint.read_tandem",
    init_at="head.init",
    drafter_at="head.TandemDrafter",
    recipe_at="training.TandemRecipe",
)
