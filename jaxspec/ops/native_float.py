"""Multiplies by float weights with the native CPU kernel."""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.matmul import contract
from jaxspec.ops.native.build import PRODUCT
from jaxspec.ops.packed import PackedWeight

# Above this many rows arithmetic is the limit, and XLA's matrix product is as good; it would widen bfloat16 first.
_MOST_ROWS = 96


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeWeight(PackedWeight):
    """Holds a weight for float32 activations on one CPU device; no gradient flows through it.

    `jaxspec.ops.native.build.register` must have run.

    Attributes:
      values: float32 or bfloat16; sums are float32 either way.
      dtype: of the rows that are read from it.
      most_rows: passes of more are XLA's, where the weights are float32, and a token's bits then depend on their
        number; `None` is never.
    """

    name: ClassVar[str] = "native"
    shardable: ClassVar[bool] = False

    values: Float[Array, "*out in"]
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})
    most_rows: int | None = dataclasses.field(default=_MOST_ROWS, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Stores the weight as `dtype`; `None` is its own."""
        return cls(weight.astype(weight.dtype if dtype is None else dtype), jnp.dtype(weight.dtype))

    @property
    def stored(self) -> Any:
        return self.values

    @property
    def by_row(self) -> bool:
        return True

    @property
    def kernels(self) -> str:
        return "native" if self.values.dtype == jnp.float32 else f"native-{self.values.dtype}"

    def in_any_rows(self) -> Self:
        return dataclasses.replace(self, most_rows=None)

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return self.values[rows].astype(self.dtype)

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        cpu = functools.partial(_cpu, most_rows=self.most_rows)
        return jax.lax.platform_dependent(x, self.values, cpu=cpu, default=_contract)


def _contract(x: Float[Array, "*b in"], values: Float[Array, "*out in"]) -> Float[Array, "..."]:
    return contract(x, values.astype(x.dtype))


def _cpu(
    x: Float[Array, "b t in"], values: Float[Array, "*out in"], *, most_rows: int | None
) -> Float[Array, "b t *out"]:
    batch, time, width = x.shape
    # Flat, because XLA copies weights of more axes in another order first.
    flat_x, flat = x.reshape(batch * time, width), values.reshape(-1, width)
    if most_rows is not None and batch * time > most_rows and flat.dtype == x.dtype:
        found = _contract(flat_x, flat)
    else:
        shape = jax.ShapeDtypeStruct((batch * time, flat.shape[0]), jnp.float32)
        found = jax.ffi.ffi_call(PRODUCT, shape, vmap_method="sequential")(flat_x, flat)
    return found.reshape(batch, time, *values.shape[:-1])
