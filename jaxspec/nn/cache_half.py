"""Holds keys and values in float16, for float32 models."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Float16, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed
from jaxspec.nn.cache import SIZES, KVCache, LayerNumber
from jaxspec.nn.cache_native import NativeKVCache

# Beyond this float16 has no numbers.
_LARGEST = float(jnp.finfo(jnp.float16).max)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HalfKVCache(KVCache):
    """Holds a `KVCache` of a float32 model in float16, with half the bytes.

    A token's keys and values are rounded before anything attends to them, so a distribution does not depend on whether
    earlier tokens were fed along or cached: verification agrees with plain decoding of this model. Numbers beyond
    65504 become 65504.

    Example:
        >>> cache = jaxspec.quantize_cache(target, "float16").init_cache(batch=2, capacity=32)
        >>> type(cache).__name__, cache.keys.dtype
        ('HalfKVCache', dtype('float16'))
    """

    keys: Float16[Array, "l b g s d"]
    values: Float16[Array, "l b g s d"]
    length: Int[Array, "b"]

    @classmethod
    @typed(**SIZES)
    def empty(cls, *, layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Self:
        """Returns an empty cache, like `KVCache.empty`, but always in float16."""
        del dtype
        sizes = {"layers": layers, "batch": batch, "heads": heads, "capacity": capacity, "head_dim": head_dim}
        return super().empty(**sizes, dtype=jnp.float16)

    def block(self, layer: LayerNumber, start: Int[Array, "*b"], count: int) -> tuple[Array, Array]:
        """Reads a layer's keys and values in `count` slots of every row, `[b, g, count, d]` each, as float32."""
        keys, values = super().block(layer, start, count)
        return keys.astype(jnp.float32), values.astype(jnp.float32)

    def fake_quant(self, x: Float[Array, "b t g d"]) -> Float[Array, "b t g d"]:
        """Rounds fresh keys or values as they will be read back."""
        # Compilers may leave out a conversion to float16 and back.
        return jax.lax.reduce_precision(jnp.clip(x, -_LARGEST, _LARGEST), exponent_bits=5, mantissa_bits=10)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeHalfKVCache(HalfKVCache, NativeKVCache):
    """Holds a `HalfKVCache` that the native attention kernel reads in place."""


# The cache types for the native kernel, by the type for XLA.
NATIVE: Mapping[type[KVCache], type[KVCache]] = MappingProxyType(
    {KVCache: NativeKVCache, HalfKVCache: NativeHalfKVCache}
)
