"""Holds keys and values as the native attention kernel reads them in place."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

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
    call = jax.ffi.ffi_call(ATTENTION, jax.ShapeDtypeStruct(queries.shape, jnp.float32), vmap_method="sequential")
    return call(
        queries,
        fresh.keys,
        fresh.values,
        fresh.positions,
        fresh.seen,
        cache.keys,
        cache.values,
        cache.length,
        positions,
        layer=np.int64(layer),
        window=np.int64(window or 0),
        scale=np.float32(scale),
    )
