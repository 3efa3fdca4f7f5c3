"""Flax modules of decoders, their caches, and models made of them."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.nn.adapters import from_function as from_function
    from jaxspec.nn.adapters import from_nnx as from_nnx
    from jaxspec.nn.cache import Entries as Entries
    from jaxspec.nn.cache import KVCache as KVCache
    from jaxspec.nn.cache_int8 import Int8KVCache as Int8KVCache
    from jaxspec.nn.config import TransformerConfig as TransformerConfig
    from jaxspec.nn.convert import native_kernels as native_kernels
    from jaxspec.nn.language_model import LanguageModel as LanguageModel
    from jaxspec.nn.quantize import quantize_cache as quantize_cache
    from jaxspec.nn.quantize import quantize_weights as quantize_weights
    from jaxspec.nn.transformer import Transformer as Transformer

__getattr__, __dir__ = lazy(
    __name__,
    {
        "config": ("TransformerConfig",),
        "transformer": ("Transformer",),
        "language_model": ("LanguageModel",),
        "cache": ("KVCache", "Entries"),
        "cache_int8": ("Int8KVCache",),
        "adapters": ("from_function", "from_nnx"),
        "convert": ("native_kernels",),
        "quantize": ("quantize_cache", "quantize_weights"),
    },
)
