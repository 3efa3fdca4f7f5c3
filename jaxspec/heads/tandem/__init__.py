"""Drafts with a small decoder that also attends to the target's states: Tandem (2402.08644)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec._lazy import lazy
from jaxspec.heads.base import HeadKind

if TYPE_CHECKING:
    from jaxspec.heads.tandem.drafter import TandemDrafter as TandemDrafter
    from jaxspec.heads.tandem.head import TandemHead as TandemHead
    from jaxspec.heads.tandem.head import init as init
    from jaxspec.heads.tandem.training import TandemRecipe as TandemRecipe


def _recognizes(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Tells whether this is the configuration of a tandem decoder."""
    del tensors
    return "JaxspecTandemHead" in (config.get("architectures") or ())


KIND = HeadKind(
    "tandem",
    __name__,
    _recognizes,
    head_at="head.TandemHead",
    read_at="checkpoint.read_tandem",
    init_at="head.init",
    drafter_at="drafter.TandemDrafter",
    recipe_at="training.TandemRecipe",
)

__getattr__, __dir__ = lazy(
    __name__,
    {
        "drafter": ("TandemDrafter",),
        "head": ("TandemHead", "init"),
        "training": ("TandemRecipe",),
    },
)
