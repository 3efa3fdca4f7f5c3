"""Makes passes agree to the bit: a token's logits then depend on its text, and not on which tokens are fed with it.

Rules (`docs/guides/lossless.md`): every pass of decoding has one number of rows, products are filled up to it; keys
stand at their slots before they are summed, in blocks that begin at fixed slots; norms and sums over the vocabulary
have one order; pieces of a prompt end at fixed positions. Native CPU kernels keep the first two by themselves.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np

from jaxspec.core.bit_exact import rows_of
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_by_slot import BySlotInt8KVCache, BySlotKVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.cache_pallas import BySlotPallasInt8KVCache, BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from jaxspec.nn.network import Network, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.nn.weight import PRODUCTS
from jaxspec.ops.packed import is_packed

_Model = TypeVar("_Model", bound=Network)

# Of a pass, unless the caller says: an accelerator reads the weights in the time of as many, and a draft of 15 fits.
ROWS = 16
# The native kernel attends so by itself.
BY_SLOT: Mapping[type[KVCache], type[KVCache]] = MappingProxyType(
    {
        KVCache: BySlotKVCache,
        Int8KVCache: BySlotInt8KVCache,
        NativeKVCache: NativeKVCache,
        PallasKVCache: BySlotPallasKVCache,
        PallasInt8KVCache: BySlotPallasInt8KVCache,
    }
)


def bit_exact(model: _Model, rows: int | None = None) -> _Model:
    """Returns the model with passes that give a token the same bits whatever is fed with it.

    `jaxspec.generate(..., bit_exact=True)` calls it. Two models of one text agree if their `rows` do.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`.
      rows: the number of tokens that each pass of decoding has, the last committed one and the drafts; the rest is
        filled up. `None` is what the model has already, or 16. Native kernels fill nothing: theirs agree in passes of
        any width.

    Raises:
      TypeError: the model is of another kind, or has caches or products that do not agree.
      ValueError: `rows` is no positive integer, or more than the model's texts may have tokens.

    Example:
        >>> exact = jaxspec.nn.bit_exact(target, rows=8)
        >>> exact.rows, type(exact.init_cache(batch=2, capacity=32)).__name__
        (8, 'BySlotKVCache')
    """
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
        raise ValueError(f"rows must be a positive integer, or None for {ROWS}, got {rows!r}")
    rows = None if rows is None else int(rows)
    module: Any = getattr(model, "module", model)
    if not isinstance(module, Transformer):
        raise TypeError(
            f"passes of a {type(module).__name__} are not known to agree to the bit; pass a model that jaxspec.load "
            "returns, or bit_exact=False"
        )
    longest = module.config.context_length
    if rows is not None and longest is not None and rows > longest:
        raise ValueError(
            f"passes of rows={rows} tokens are longer than the context of {longest}; pass fewer, such as {ROWS}"
        )
    cache_type = BY_SLOT.get(model.cache_type, model.cache_type)
    if cache_type not in BY_SLOT.values():
        raise TypeError(f"a {cache_type.__name__} does not attend slot by slot; pass a model with one of {_names()}")
    if is_by_row(model):
        params = jax.tree.map(lambda x: x.in_any_rows() if is_packed(x) else x, model.params, is_leaf=is_packed)
        return dataclasses.replace(model, params=params, cache_type=cache_type, rows=None)
    return dataclasses.replace(model, cache_type=cache_type, rows=rows or rows_of(model) or ROWS)


def is_by_row(model: Network) -> bool:
    """Returns whether native kernels compute all products, whose rows have bits of their own."""
    plain = [path for path, _ in jax.tree.leaves_with_path(model.params) if getattr(path[-1], "key", "") in PRODUCTS]
    packed = packed_weights(model)
    return jax.default_backend() == "cpu" and not plain and bool(packed) and all(weight.by_row for weight in packed)


def _names() -> str:
    return ", ".join(cache.__name__ for cache in BY_SLOT)
