"""Holds keys and values that are attended to slot by slot: the caches of models whose passes agree to the bit."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.attention_by_slot import attend_by_slot
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_int8 import Int8KVCache


class _BySlot(KVCache):
    """Attends by `attend_by_slot`."""

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
        """Computes `KVCache.attend` with the same bits for a token, whatever is fed with it."""
        if self.positions is not None or self.capacity == 0:
            return default(queries, fresh, self)
        return attend_by_slot(queries, fresh, self, layer, scale=scale, window=window)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotKVCache(_BySlot):
    """Holds a `KVCache` that is attended to slot by slot."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotInt8KVCache(_BySlot, Int8KVCache):
    """Holds an `Int8KVCache` that is attended to slot by slot."""
