"""Collects Flax modules of decoders, their caches, and the models that use them."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.nn.adapters import from_function as from_function, from_nnx as from_nnx
    from jaxspec.nn.cache import KVCache as KVCache, KVEntries as KVEntries
    from jaxspec.nn.cache_half import HalfKVCache as HalfKVCache
    from jaxspec.nn.cache_int8 import Int8KVCache as Int8KVCache
    from jaxspec.nn.cache_pallas import pallas_kernels as pallas_kernels
    from jaxspec.nn.config import ExpertsConfig as ExpertsConfig, TransformerConfig as TransformerConfig
    from jaxspec.nn.convert import (
        native_kernels as native_kernels,
        pack_weights as pack_weights,
        quantize_cache as quantize_cache,
        quantize_weights as quantize_weights,
    )
    from jaxspec.nn.exact_passes import bit_exact as bit_exact
    from jaxspec.nn.language_model import LanguageModel as LanguageModel
    from jaxspec.nn.network import Network as Network
    from jaxspec.nn.qwix import from_qwix as from_qwix
    from jaxspec.nn.transformer import Transformer as Transformer
