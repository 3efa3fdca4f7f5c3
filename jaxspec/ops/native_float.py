"""Weights that are multiplied by the native product."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.matmul import contract
from jaxspec.ops.native.build import PRODUCT
from jaxspec.ops.packed import PackedWeight

# Above this many rows arithmetic decides, and XLA's matrix product is as good. It would widen bfloat16 first.
_MOST_ROWS = 96


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeKernel(PackedWeight):
    """A kernel for float32 activations on one CPU device; `register` must have run. No gradient goes through it.

    Attributes:
      values: float32 or bfloat16; sums are float32 either way.
      dtype: what its rows are read as.
    """

    splits: ClassVar[bool] = False

    values: Float[Array, "*out in"]
    dtype: Any = dataclasses.field(default=jnp.float32, metadata={"static": True})

    @property
    def stored(self) -> Array:
        return self.values

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.values.nbytes

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return self.values[rows].astype(self.dtype)

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        return jax.lax.platform_dependent(x, self.values, cpu=_cpu, default=_contract)


def _contract(x: Array, values: Array) -> Array:
    return contract(x, values.astype(x.dtype))


def _cpu(x: Array, values: Array) -> Array:
    batch, time, width = x.shape
    # Flat, because XLA copies weights of more axes in another order first.
    flat_x, flat = x.reshape(batch * time, width), values.reshape(-1, width)
    if batch * time > _MOST_ROWS and flat.dtype == x.dtype:
        found = _contract(flat_x, flat)
    else:
        shape = jax.ShapeDtypeStruct((batch * time, flat.shape[0]), jnp.float32)
        found = jax.ffi.ffi_call(PRODUCT, shape, vmap_method="sequential")(flat_x, flat)
    return found.reshape(batch, time, *values.shape[:-1])
