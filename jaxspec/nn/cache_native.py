"""Holds keys and values in the layout that the native attention kernel reads in place."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache, LayerNumber
from jaxspec.ops.native.build import ATTENTION


@register_dataclass
@dataclasses.dataclass(frozen=True)
class NativeKVCache(KVCache):
    """Holds a `KVCache` of a float32 model on one CPU device; no gradient flows through it.

    `jaxspec.ops.native.build.register` must have run.
    """

    def attend(
        self,
        default: Callable[..., Array],
        queries: Float[Array, "b t g r d"],
        fresh: Any,
        layer: LayerNumber,
        *,
        scale: float,
        window: int | None,
    ) -> Float[Array, "b t g r d"]:
        """Computes `KVCache.attend` in one operation that copies nothing."""
        if queries.dtype != jnp.float32:
            return default(queries, fresh, self)

        def native(queries, fresh, cache):
            positions = jnp.zeros((0, 0), jnp.int32) if cache.positions is None else cache.positions
            sinks = jnp.zeros((0, 0)) if fresh.sinks is None else fresh.sinks
            call = jax.ffi.ffi_call(
                ATTENTION, jax.ShapeDtypeStruct(queries.shape, jnp.float32), vmap_method="sequential"
            )
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
                jnp.asarray(layer, jnp.int32),
                sinks.astype(jnp.float32),
                window=np.int64(window or 0),
                scale=np.float32(scale),
            )

        return jax.lax.platform_dependent(queries, fresh, self, cpu=native, default=default)
