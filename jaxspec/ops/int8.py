"""Quantizes vectors to int8 with one scale each (integers from -127 to 127), and multiplies by int8 weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int8

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import rounded
from jaxspec.ops.matmul import MOST_FUSED_ROWS, multiply_and_sum, pad_rows
from jaxspec.ops.packed import Axes, PackedWeight

_LARGEST = 127.0


def quantize(x: Float[Array, "*n d"]) -> tuple[Int8[Array, "*n d"], Float[Array, "*n"]]:
    """Rounds the vectors along the last axis to int8, with one float32 scale each; zero vectors get scale 0.

    A scale has 17 bits and an integer 7, so their product is exact, and rounding is idempotent.
    """
    wide = x.astype(jnp.float32)
    scale = jax.lax.reduce_precision(jnp.max(jnp.abs(wide), axis=-1) / _LARGEST, exponent_bits=8, mantissa_bits=16)
    safe = jnp.where(scale > 0, scale, 1.0)
    return jnp.round(wide / safe[..., None]).astype(jnp.int8), scale


def dequantize(values: Int8[Array, "*n d"], scale: Float[Array, "*n"]) -> Float[Array, "*n d"]:
    """Returns `values * scale`, float32."""
    return values.astype(jnp.float32) * scale[..., None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Weight(PackedWeight):
    """Holds an int8 weight with one scale per output.

    Attributes:
      values: the integers.
      scale: one scale per output.
      dtype: the dtype of rows that are read from it.
    """

    name: ClassVar[str] = "int8"

    values: Int8[Array, "*out in"]
    scale: Float[Array, "*out"]
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Rounds each output's weights to the nearest multiple of their largest magnitude over 127."""
        if dtype is not None and jnp.dtype(dtype) != jnp.int8:
            raise ValueError(f"int8 weights are stored as int8, got dtype {jnp.dtype(dtype)}; leave it None")
        return _pack(cls, weight)

    @property
    def stored(self) -> Any:
        return self.values

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return dequantize(self.values[rows], self.scale[rows]).astype(self.dtype)

    def map_axes(self, function: Callable[[Any, Axes], Any], axes: Axes) -> Self:
        return dataclasses.replace(self, values=function(self.values, axes), scale=function(self.scale, axes[:-1]))

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        found = jax.lax.platform_dependent(x, self.values, cpu=_cpu, tpu=_tpu, default=_contract)
        return rounded(found * self.scale[None, None]).astype(x.dtype)


# Traced, so that the compiler makes no float copy, and follows how a weight is split over a mesh.
@functools.partial(jax.jit, static_argnums=0)
def _pack(cls: type[Int8Weight], weight: Float[Array, "*out in"]) -> Int8Weight:
    values, scale = quantize(weight)
    return cls(values, scale, jnp.dtype(weight.dtype))


def _contract(x: Float[Array, "*b in"], values: Int8[Array, "*out in"]) -> Float[Array, "..."]:
    """Contracts to float32. Integers up to 127 are exact in bfloat16; the compiler converts them as it reads them."""
    last = ((x.ndim - 1,), (values.ndim - 1,))
    return jax.lax.dot_general(x, values.astype(x.dtype), (last, ((), ())), preferred_element_type=jnp.float32)


def _tpu(x: Float[Array, "b t in"], values: Int8[Array, "*out in"]) -> Float[Array, "b t *out"]:
    return pad_rows(_contract, x, values)


def _cpu(x: Float[Array, "b t in"], values: Int8[Array, "*out in"]) -> Float[Array, "b t *out"]:
    batch, time, width = x.shape
    flat_x, flat_values = x.reshape(batch * time, width), values.reshape(-1, width)
    if batch * time <= MOST_FUSED_ROWS:
        flat = multiply_and_sum(flat_x.astype(jnp.float32), flat_values)
    else:
        flat = _contract(flat_x, flat_values)
    return flat.reshape(batch, time, *values.shape[:-1])
