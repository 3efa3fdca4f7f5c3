"""Collects the model families, one file each: configuration, and the names of tensors in each kind of checkpoint."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.families.base import Family as Family
    from jaxspec.families.base import GGUFLayout as GGUFLayout
    from jaxspec.families.base import LazyTensor as LazyTensor
    from jaxspec.families.base import ParamMapping as ParamMapping
    from jaxspec.families.grouped import Grouped as Grouped
    from jaxspec.families.table import find_family as find_family

__getattr__, __dir__ = lazy(
    __name__,
    {
        "base": ("Family", "GGUFLayout", "LazyTensor", "ParamMapping"),
        "grouped": ("Grouped",),
        "table": ("find_family",),
    },
)
