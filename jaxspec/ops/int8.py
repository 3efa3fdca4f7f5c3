"""Vectors as int8 and one scale each: whole numbers from -127 to 127."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.matmul import MOST_FUSED_ROWS, multiply_and_sum, pad_rows
from jaxspec.ops.packed import PackedWeight

_MOST = 127.0


def quantize(x: Float[Array, "*n d"]) -> tuple[Int8[Array, "*n d"], Float[Array, "*n"]]:
    """Whole numbers and scales of the vectors along the last axis; of zeros, zeros."""
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / _MOST
    safe = jnp.where(scale > 0, scale, 1.0)
    return jnp.round(wide / safe[..., None]).astype(jnp.int8), scale


def dequantize(values: Int8[Array, "*n d"], scale: Float[Array, "*n"]) -> Float[Array, "*n d"]:
    """What they stand for, float32."""
    return values.astype(jnp.float32) * scale[..., None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Kernel(PackedWeight):
    """A kernel in int8.

    Attributes:
      values: the whole numbers.
      scale: of each output.
      dtype: what its rows are read as.
    """

    values: Int8[Array, "*out in"]
    scale: Float[Array, "*out"]
    dtype: Any = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def of(cls, kernel: Float[Array, "*out in"]) -> "Int8Kernel":
        """The nearest one."""
        values, scale = quantize(kernel)
        return cls(values, scale, jnp.dtype(kernel.dtype))

    @property
    def stored(self) -> Array:
        return self.values

    @property
    def nbytes(self) -> int:
        """Of both arrays."""
        return self.values.nbytes + self.scale.nbytes

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return dequantize(self.values[rows], self.scale[rows]).astype(self.dtype)

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        found = jax.lax.platform_dependent(x, self.values, cpu=_cpu, tpu=_tpu, default=_contract)
        return (found * self.scale[None, None]).astype(x.dtype)


def _contract(x: Array, values: Array) -> Array:
    """Into float32. Whole numbers up to 127 are exact in bfloat16; the compiler converts them as it reads them."""
    last = ((x.ndim - 1,), (values.ndim - 1,))
    return jax.lax.dot_general(x, values.astype(x.dtype), (last, ((), ())), preferred_element_type=jnp.float32)


def _tpu(x: Array, values: Array) -> Array:
    return pad_rows(_contract, x, values)


def _cpu(x: Array, values: Array) -> Array:
    batch, time, width = x.shape
    flat_x, flat_values = x.reshape(batch * time, width), values.reshape(-1, width)
    if batch * time <= MOST_FUSED_ROWS:
        flat = multiply_and_sum(flat_x.astype(jnp.float32), flat_values)
    else:
        flat = _contract(flat_x, flat_values)
    return flat.reshape(batch, time, *values.shape[:-1])
