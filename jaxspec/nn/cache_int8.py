"""Holds keys and values in int8, with one scale per vector."""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Int8

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed
from jaxspec.core.validate import dtype_of
from jaxspec.nn.cache import DTYPES, SIZES, KVCache, KVEntries, LayerNumber, slots
from jaxspec.ops.int8 import dequantize, quantize


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8KVCache(KVCache):
    """Holds a `KVCache` in int8: a quarter of float32's bytes, half of bfloat16's, plus 4 bytes per vector of `d`.

    A token's keys and values are rounded before anything attends to them, so a distribution does not depend on whether
    earlier tokens were fed along or cached: verification agrees with plain decoding of this model.

    Attributes:
      keys: the keys as integers.
      values: the values as integers.
      key_scale: the scale of each slot's key.
      value_scale: the scale of each slot's value.
      dtype: the dtype of keys and values that are read from it.

    Example:
        >>> cache = jaxspec.quantize_cache(target).init_cache(batch=2, capacity=32)
        >>> type(cache).__name__, cache.keys.dtype
        ('Int8KVCache', dtype('int8'))
    """

    keys: Int8[Array, "l b g s d"]
    values: Int8[Array, "l b g s d"]
    length: Int[Array, "b"]
    key_scale: Float[Array, "l b g s 1"]
    value_scale: Float[Array, "l b g s 1"]
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    @typed(**SIZES)
    def empty(cls, *, layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Self:
        """Returns an empty cache, like `KVCache.empty`; `dtype` is that of keys and values read from it."""
        sizes = {"layers": layers, "batch": batch, "heads": heads, "capacity": capacity, "head_dim": head_dim}
        blank = KVCache.empty(**sizes, dtype=jnp.int8)
        scales = jnp.zeros((*blank.keys.shape[:-1], 1), jnp.float32)
        return cls(blank.keys, blank.values, blank.length, scales, scales, dtype_of("dtype", dtype, DTYPES))

    def block(self, layer: LayerNumber, start: Int[Array, "*b"], count: int) -> tuple[Array, Array]:
        """Reads a layer's keys and values in `count` slots of every row, `[b, g, count, d]` each, as `dtype`."""
        read = lambda whole, scale: dequantize(  # noqa: E731
            slots(whole, layer, start, count), slots(scale, layer, start, count)[..., 0]
        ).astype(self.dtype)
        return read(self.keys, self.key_scale), read(self.values, self.value_scale)

    def fake_quant(self, x: Float[Array, "b t g d"]) -> Float[Array, "b t g d"]:
        """Rounds fresh keys or values as they will be read back."""
        return dequantize(*quantize(x)).astype(x.dtype)

    def append(self, entries: KVEntries) -> Self:
        """Writes each row's entries at its length; needs `length + t <= capacity`."""
        keys, key_scale = quantize(entries.keys)
        values, value_scale = quantize(entries.values)
        return dataclasses.replace(
            self,
            keys=self.write(self.keys, keys, self.length),
            values=self.write(self.values, values, self.length),
            length=self.length + entries.keys.shape[3],
            key_scale=self.write(self.key_scale, key_scale[..., None], self.length),
            value_scale=self.write(self.value_scale, value_scale[..., None], self.length),
        )
