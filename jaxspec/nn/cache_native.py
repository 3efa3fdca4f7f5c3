"""A cache that the native attention reads where it lies."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache
from jaxspec.ops.native.build import ATTENTION


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeKVCache(KVCache):
    """A float32 `KVCache` on one CPU device; `register` must have run. No gradient goes through it."""

    def attend(self, otherwise, queries, fresh, layer, *, scale, window):
        """As `KVCache.attend`, in one operation that copies nothing."""
        if queries.dtype != jnp.float32:
            return otherwise(queries, fresh, self)
        native = functools.partial(_native, layer=layer, scale=scale, window=window)
        return jax.lax.platform_dependent(queries, fresh, self, cpu=native, default=otherwise)


def _native(queries, fresh, cache: NativeKVCache, *, layer: int, scale: float, window: int | None):
    positions = jnp.zeros((0, 0), jnp.int32) if cache.positions is None else cache.positions
    call = jax.ffi.ffi_call(ATTENTION, jax.ShapeDtypeStruct(queries.shape, jnp.float32), vmap_method="sequential")
    return call(
        queries,
        fresh.keys,
        fresh.values,
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
