"""int8 weights: whole numbers from -127 to 127, and one scale for each output.

    kernel[o, i]  ~  values[o, i] * scale[o]          scale[o] = max_i |kernel[o, i]| / 127

A quarter of float32's bytes, half of bfloat16's (absolute maxima of each row: Dettmers et al. 2208.07339, section 3.1;
activations stay as they are).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8

from jaxspec.int8 import dequantise, quantise
from jaxspec.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Kernel:
    """A kernel that stands where an array `[*out, in]` stood; `jaxspec.nn.products.project` multiplies with it.

    Attributes:
      values: the whole numbers.
      scale: of each output.
      dtype: what its rows are read as.
    """

    # First, because Flax compares the shape of the first leaf with the parameter's.
    values: Int8[Array, "*out in"]
    scale: Float[Array, "*out"]
    dtype: Any = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @classmethod
    def of(cls, kernel: Float[Array, "*out in"]) -> "Int8Kernel":
        """The nearest one."""
        values, scale = quantise(kernel)
        return cls(values, scale, jnp.dtype(kernel.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the kernel."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Of the kernel."""
        return self.values.ndim

    @property
    def nbytes(self) -> int:
        """Of both arrays."""
        return self.values.nbytes + self.scale.nbytes

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        """Rows along the first axis, as `dtype`: of an embedding, or of a head over fewer tokens."""
        return dequantise(self.values[rows], self.scale[rows]).astype(self.dtype)

    def astype(self, dtype: Any) -> Float[Array, "*out in"]:
        """All of it as an array."""
        return dequantise(self.values, self.scale).astype(dtype)
