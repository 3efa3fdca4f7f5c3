"""Runs models of other projects: those of tunix, gemma, EasyDeL, KerasHub and bonsai, and any function with a cache."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.foreign.adoption import adopt as adopt
    from jaxspec.foreign.bonsai import from_bonsai as from_bonsai
    from jaxspec.foreign.easydel import from_easydel as from_easydel
    from jaxspec.foreign.gemma import from_gemma as from_gemma
    from jaxspec.foreign.head_target import for_heads as for_heads
    from jaxspec.foreign.keras_hub import from_keras_hub as from_keras_hub
    from jaxspec.foreign.model import CachedModel as CachedModel, Fed as Fed, from_cached as from_cached
    from jaxspec.foreign.tunix import from_tunix as from_tunix
