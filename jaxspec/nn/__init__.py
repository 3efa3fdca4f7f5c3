"""Collects Flax modules of decoders, their caches, and models made of them."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.nn.adapters import from_function as from_function
    from jaxspec.nn.adapters import from_nnx as from_nnx
    from jaxspec.nn.cache import KVCache as KVCache
    from jaxspec.nn.cache import KVEntries as KVEntries
    from jaxspec.nn.cache_int8 import Int8KVCache as Int8KVCache
    from jaxspec.nn.cache_pallas import pallas_kernels as pallas_kernels
    from jaxspec.nn.config import TransformerConfig as TransformerConfig
    from jaxspec.nn.convert import native_kernels as native_kernels
    from jaxspec.nn.convert import pack_weights as pack_weights
    from jaxspec.nn.convert import quantize_cache as quantize_cache
    from jaxspec.nn.convert import quantize_weights as quantize_weights
    from jaxspec.nn.exact_passes import bit_exact as bit_exact
    from jaxspec.nn.language_model import LanguageModel as LanguageModel
    from jaxspec.nn.network import Network as Network
    from jaxspec.nn.qwix import from_qwix as from_qwix
    from jaxspec.nn.transformer import Transformer as Transformer

__getattr__, __dir__ = lazy(
    __name__,
    {
        "config": ("TransformerConfig",),
        "transformer": ("Transformer",),
        "network": ("Network",),
        "language_model": ("LanguageModel",),
        "cache": ("KVCache", "KVEntries"),
        "cache_int8": ("Int8KVCache",),
        "cache_pallas": ("pallas_kernels",),
        "adapters": ("from_function", "from_nnx"),
        "qwix": ("from_qwix",),
        "exact_passes": ("bit_exact",),
        "convert": ("native_kernels", "pack_weights", "quantize_cache", "quantize_weights"),
    },
)
