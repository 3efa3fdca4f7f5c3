"""Collects the trained heads, one folder each: network, drafter, checkpoint and training."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.heads import dflash as dflash, eagle as eagle, medusa as medusa
    from jaxspec.heads.base import HeadKind as HeadKind
    from jaxspec.heads.dflash.head import DFlashDrafter as DFlashDrafter, DFlashHead as DFlashHead
    from jaxspec.heads.eagle.head import EagleDrafter as EagleDrafter, EagleHead as EagleHead
    from jaxspec.heads.medusa.head import MedusaDrafter as MedusaDrafter, MedusaHead as MedusaHead
