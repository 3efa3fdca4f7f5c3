"""Computes the arithmetic of a pass: products, rotary embeddings, and one file a format of stored weights."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.ops.formats import FORMATS as FORMATS
    from jaxspec.ops.packed import PackedWeight as PackedWeight

__getattr__, __dir__ = lazy(
    __name__,
    {
        "formats": ("FORMATS",),
        "packed": ("PackedWeight",),
    },
)
