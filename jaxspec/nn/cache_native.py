"""Holds keys and values as the native attention kernel reads them in place: in float32, or in bfloat16."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache
from jaxspec.ops.native.build import ATTENTION


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeKVCache(KVCache):
    """Holds a float32 `KVCache` on one CPU device; no gradient flows through it.

    `jaxspec.ops.native.build.register` must have run.
    """

    def attend(
        self,
        default: Callable[..., Array],
        queries: Float[Array, "b t g r d"],
        fresh: Any,
        layer: int,
        *,
        scale: float,
        window: int | None,
    ) -> Float[Array, "b t g r d"]:
        """Computes `KVCache.attend` in one operation that copies nothing."""
        if queries.dtype != jnp.float32:
            return default(queries, fresh, self)
        native = functools.partial(_native, layer=layer, scale=scale, window=window)
        return jax.lax.platform_dependent(queries, fresh, self, cpu=native, default=default)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeBfloat16KVCache(NativeKVCache):
    """Holds keys and values in bfloat16, of a float32 model: half of what attention reads.

    They are rounded before anything attends to them, as in `Int8KVCache`.
    """

    @classmethod
    def empty(cls, *, layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Self:
        """Returns an empty cache, as `KVCache.empty`; `dtype` is the model's, and not that of what is held."""
        sizes = {"layers": layers, "batch": batch, "heads": heads, "capacity": capacity, "head_dim": head_dim}
        return super().empty(**sizes, dtype=jnp.bfloat16)

    def block(self, layer: int, start: Int[Array, ""], count: int) -> tuple[Array, Array]:
        """Reads a layer's keys and values in `count` slots of every row, `[b, g, count, d]` each, as float32."""
        keys, values = super().block(layer, start, count)
        return keys.astype(jnp.float32), values.astype(jnp.float32)

    def fake_quant(self, x: Float[Array, "b t g d"]) -> Float[Array, "b t g d"]:
        """Rounds fresh keys or values as they will be read back."""
        return x.astype(jnp.bfloat16).astype(x.dtype)


def _native(
    queries: Float[Array, "b t g r d"],
    fresh: Any,
    cache: NativeKVCache,
    *,
    layer: int,
    scale: float,
    window: int | None,
) -> Float[Array, "b t g r d"]:
    positions = jnp.zeros((0, 0), jnp.int32) if cache.positions is None else cache.positions
    kind = cache.keys.dtype
    call = jax.ffi.ffi_call(ATTENTION, jax.ShapeDtypeStruct(queries.shape, jnp.float32), vmap_method="sequential")
    return call(
        queries,
        fresh.keys.astype(kind),
        fresh.values.astype(kind),
        fresh.positions,
        fresh.mask,
        cache.keys,
        cache.values,
        cache.length,
        positions,
        layer=np.int64(layer),
        window=np.int64(window or 0),
        scale=np.float32(scale),
    )
