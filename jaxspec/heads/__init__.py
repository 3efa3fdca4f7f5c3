"""Collects the trained heads, one folder each: network, drafter, files and training."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.heads import dflash as dflash
    from jaxspec.heads import eagle as eagle
    from jaxspec.heads import medusa as medusa
    from jaxspec.heads import tandem as tandem
    from jaxspec.heads.base import HeadKind as HeadKind
    from jaxspec.heads.dflash.drafter import DFlashDrafter as DFlashDrafter
    from jaxspec.heads.dflash.head import DFlashHead as DFlashHead
    from jaxspec.heads.eagle.drafter import EagleDrafter as EagleDrafter
    from jaxspec.heads.eagle.head import EagleHead as EagleHead
    from jaxspec.heads.medusa.drafter import MedusaDrafter as MedusaDrafter
    from jaxspec.heads.medusa.head import MedusaHead as MedusaHead
    from jaxspec.heads.tandem.drafter import TandemDrafter as TandemDrafter
    from jaxspec.heads.tandem.head import TandemHead as TandemHead

__getattr__, __dir__ = lazy(
    __name__,
    {
        "dflash.drafter": ("DFlashDrafter",),
        "dflash.head": ("DFlashHead",),
        "eagle.drafter": ("EagleDrafter",),
        "eagle.head": ("EagleHead",),
        "medusa.drafter": ("MedusaDrafter",),
        "medusa.head": ("MedusaHead",),
        "tandem.drafter": ("TandemDrafter",),
        "tandem.head": ("TandemHead",),
        "base": ("HeadKind",),
        "": ("dflash", "eagle", "medusa", "tandem"),
    },
)
