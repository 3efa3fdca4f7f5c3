"""Computes the arithmetic of a pass: products, rotary embeddings, and weight formats, one file for each."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.ops.formats import FORMATS as FORMATS
    from jaxspec.ops.packed import PackedWeight as PackedWeight
