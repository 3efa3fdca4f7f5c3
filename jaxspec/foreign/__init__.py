"""Runs models of other projects: any function with a cache, and those of tunix, gemma, EasyDeL, KerasHub and bonsai."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.foreign.adoption import adopt as adopt
    from jaxspec.foreign.bonsai import from_bonsai as from_bonsai
    from jaxspec.foreign.easydel import from_easydel as from_easydel
    from jaxspec.foreign.gemma import from_gemma as from_gemma
    from jaxspec.foreign.head_target import for_heads as for_heads
    from jaxspec.foreign.keras_hub import from_keras_hub as from_keras_hub
    from jaxspec.foreign.model import CachedModel as CachedModel
    from jaxspec.foreign.model import Fed as Fed
    from jaxspec.foreign.model import from_cached as from_cached
    from jaxspec.foreign.tunix import from_tunix as from_tunix

__getattr__, __dir__ = lazy(
    __name__,
    {
        "adoption": ("adopt",),
        "bonsai": ("from_bonsai",),
        "easydel": ("from_easydel",),
        "gemma": ("from_gemma",),
        "head_target": ("for_heads",),
        "keras_hub": ("from_keras_hub",),
        "model": ("CachedModel", "Fed", "from_cached"),
        "tunix": ("from_tunix",),
    },
)
