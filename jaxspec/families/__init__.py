"""Collects the model families, one file each: configuration, and tensor names in each kind of checkpoint."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.families.base import (
        Family as Family,
        GGUFLayout as GGUFLayout,
        Grouped as Grouped,
        LazyTensor as LazyTensor,
        ParamMapping as ParamMapping,
    )
    from jaxspec.families.table import find_family as find_family
