"""Multiplies by float weights with the native CPU kernel."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.experts import ragged
from jaxspec.ops.matmul import contract
from jaxspec.ops.native.build import PRODUCT, PRODUCT_BY_EXPERT
from jaxspec.ops.packed import PackedWeight

# Above this number of tokens arithmetic is the limit, and XLA's product is as good; it would widen bfloat16 first.
_MOST_TOKENS = 96


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeWeight(PackedWeight):
    """Holds a weight for float32 activations on one CPU device; no gradient flows through it.

    `jaxspec.ops.native.build.register` must have run.

    Attributes:
      values: the weight in float32 or bfloat16; sums are float32.
      dtype: the dtype of rows that are read from it.
      most_tokens: above this number of tokens, XLA multiplies float32 weights, and a token's bits then depend on the
        number; `None` is no limit.
    """

    name: ClassVar[str] = "native"
    shardable: ClassVar[bool] = False

    values: Float[Array, "*out in"]
    dtype: DTypeLike = dataclasses.field(default=jnp.float32, metadata={"static": True})
    most_tokens: int | None = dataclasses.field(default=_MOST_TOKENS, metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*out in"], dtype: DTypeLike | None = None) -> Self:
        """Stores the weight as `dtype`; `None` keeps its dtype."""
        return cls(weight.astype(weight.dtype if dtype is None else dtype), jnp.dtype(weight.dtype))

    @property
    def stored(self) -> Any:
        return self.values

    @property
    def by_token(self) -> bool:
        return True

    @property
    def kernels(self) -> str:
        return "native" if self.values.dtype == jnp.float32 else f"native-{self.values.dtype}"

    def in_any_pass(self) -> Self:
        return dataclasses.replace(self, most_tokens=None)

    def __getitem__(self, rows: Any) -> Float[Array, "*rows in"]:
        return self.values[rows].astype(self.dtype)

    def product(self, x: Float[Array, "b t in"]) -> Float[Array, "b t *out"]:
        return self.product_in_loop(x, (self,), jnp.int32(0))

    def loops(self, tokens: int) -> bool:
        return self.most_tokens is None or tokens <= self.most_tokens or self.values.dtype != jnp.float32

    def product_in_loop(
        self, x: Float[Array, "b t in"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "b t *out"]:
        batch, time, _ = x.shape
        native = self.loops(batch * time) or x.dtype != self.values.dtype
        values = [weight.values for weight in weights]
        cpu = functools.partial(_flat, _native if native else _chosen)
        return jax.lax.platform_dependent(x, layer, *values, cpu=cpu, default=_chosen)

    def product_by_expert(self, x: Float[Array, "m in"], experts: Int[Array, "m"]) -> Float[Array, "m *out"]:
        return self.product_by_expert_in_loop(x, experts, (self,), jnp.int32(0))

    def product_by_expert_in_loop(
        self, x: Float[Array, "m in"], experts: Int[Array, "m"], weights: Sequence[Any], layer: Int[Array, ""]
    ) -> Float[Array, "m *out"]:
        values = [weight.values for weight in weights]
        forms = {"cpu": _native_by_expert, "default": _chosen_by_expert}
        return jax.lax.platform_dependent(x, experts, layer, *values, **forms)


def _chosen_by_expert(
    x: Float[Array, "m in"], experts: Int[Array, "m"], layer: Int[Array, ""], *values: Float[Array, "e *out in"]
) -> Float[Array, "m *out"]:
    return ragged(x, _of_layer(values, layer).astype(x.dtype), experts)


def _native_by_expert(
    x: Float[Array, "m in"], experts: Int[Array, "m"], layer: Int[Array, ""], *values: Float[Array, "e *out in"]
) -> Float[Array, "m *out"]:
    count, *out, width = values[0].shape
    flat = [each.reshape(count, -1, width) for each in values]
    shape = jax.ShapeDtypeStruct((x.shape[0], flat[0].shape[1]), jnp.float32)
    call = jax.ffi.ffi_call(PRODUCT_BY_EXPERT, shape, vmap_method="sequential")
    return call(x.astype(jnp.float32), experts, layer, *flat).astype(x.dtype).reshape(x.shape[0], *out)


def _of_layer(values: Sequence[Float[Array, "*out in"]], layer: Int[Array, ""]) -> Float[Array, "*out in"]:
    return values[0] if len(values) == 1 else jnp.stack(values)[layer]


def _chosen(x: Float[Array, "*b in"], layer: Int[Array, ""], *values: Float[Array, "*out in"]) -> Array:
    return contract(x, _of_layer(values, layer).astype(x.dtype))


def _native(x: Float[Array, "rows in"], layer: Int[Array, ""], *values: Float[Array, "out in"]) -> Array:
    shape = jax.ShapeDtypeStruct((x.shape[0], values[0].shape[0]), jnp.float32)
    return jax.ffi.ffi_call(PRODUCT, shape, vmap_method="sequential")(x, layer, *values)


def _flat(
    product: Callable[..., Array], x: Float[Array, "b t in"], layer: Int[Array, ""], *values: Float[Array, "*out in"]
) -> Float[Array, "b t *out"]:
    """Computes a product of matrices: XLA would first copy weights of more axes in another order."""
    batch, time, width = x.shape
    found = product(x.reshape(batch * time, width), layer, *(each.reshape(-1, width) for each in values))
    return found.reshape(batch, time, *values[0].shape[:-1])
