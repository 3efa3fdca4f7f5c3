"""Holds keys and values that kernels read on TPUs and GPUs, and write on TPUs; elsewhere XLA does."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from jaxspec.core.compiler import by_platform
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import Kernels
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn import cache as xla
from jaxspec.nn.attention import Fresh, within
from jaxspec.nn.attention_by_slot import BySlotInt8KVCache, BySlotKVCache
from jaxspec.nn.cache import KVCache, LayerNumber
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.network import Network
from jaxspec.ops.int8 import quantize
from jaxspec.ops.pallas import attention, write
from jaxspec.ops.pallas.attention import Slots
from jaxspec.ops.rope import RopeTable
from jaxspec.ops.triton import attention as triton, fused

_Network = TypeVar("_Network", bound=Network)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Kernels(KVCache):
    """Attends with kernels, and writes with a kernel on TPUs, on each device over its own rows and heads.

    Attributes:
      layout: the layout of its arrays on devices.
      kernels: the kernels of products and norms; bit-exact passes use XLA.
    """

    layout: Layout = dataclasses.field(default=Unsharded(), kw_only=True, metadata={"static": True})

    # Whether the nodes of a tree see their ancestors at the slots of plain decoding.
    by_path: ClassVar[bool] = False
    kernels: ClassVar[Kernels] = "pallas"

    def on(self, layout: Layout) -> Self:
        return dataclasses.replace(self, layout=layout)

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
        """Computes `KVCache.attend` in one operation that reads the live slots."""

        def by_xla(queries: Array, fresh: Any, cache: _Kernels) -> Array:
            return super(_Kernels, cache).attend(default, queries, fresh, layer, scale=scale, window=window)

        if self.positions is not None or self.capacity == 0:
            return by_xla(queries, fresh, self)
        options = {"layer": layer, "scale": scale, "window": window}
        kernels = {"tpu": functools.partial(_attend, **options)}
        if self._by_triton(queries):
            kernels["cuda"] = functools.partial(_attend_by_triton, **options)
        return by_platform(kernels, by_xla, queries, fresh, self)

    def rotate(
        self, queries: Float[Array, "b t g r d"], both: Float[Array, "b t g 2 d"], table: RopeTable
    ) -> tuple[Float[Array, "b t g r d"], Float[Array, "b t g d"], Float[Array, "b t g d"]]:
        kernels = {"cuda": functools.partial(_rotate, self.layout)} if self._by_triton(queries) else {}
        return by_platform(kernels, super().rotate, queries, both, table)

    def _by_triton(self, queries: Float[Array, "b t g r d"]) -> bool:
        """Returns whether the GPU kernels support these heads and passes.

        Their passes are not promised to agree to the bit: nobody has compared them on a GPU.
        """
        # Without slots, as in training, a pass must be differentiable.
        if self.by_path or self.positions is not None or self.capacity == 0:
            return False
        found = triton.addresses(self.keys.size, self.keys.dtype.itemsize, self.layout.devices)
        return found and triton.fits(queries.shape[-1])

    def write(
        self, buffer: Shaped[Array, "l b g s d"], fresh: Shaped[Array, "l b g t d"], start: Int[Array, "b"]
    ) -> Shaped[Array, "l b g s d"]:
        if buffer.shape[-1] == 1 or self.capacity % write.TILE:
            return xla.write(buffer, fresh, start)  # scales: a kernel would pad each to a whole tile
        kernels = {"tpu": functools.partial(_write, self.layout)}
        return by_platform(kernels, xla.write, buffer, fresh, start)

    def slots(self) -> Slots:
        """Returns the arrays for the kernel."""
        return Slots(self.keys, self.values)

    def fed(self, fresh: Fresh) -> Slots:
        """Returns fed tokens in the cache's format."""
        return Slots(jnp.swapaxes(fresh.keys, 1, 2), jnp.swapaxes(fresh.values, 1, 2))


class _Int8Kernels(_Kernels, Int8KVCache):
    """Attends to integers: scores, and weights of values, are multiplied by their slots' scales."""

    def slots(self) -> Slots:
        return Slots(self.keys, self.values, self.key_scale[..., 0], self.value_scale[..., 0])

    def fed(self, fresh: Fresh) -> Slots:
        both = (quantize(jnp.swapaxes(x, 1, 2)) for x in (fresh.keys, fresh.values))
        (keys, key_scale), (values, value_scale) = both
        return Slots(keys, values, key_scale, value_scale)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PallasKVCache(_Kernels):
    """Holds a `KVCache` for Pallas kernels."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PallasInt8KVCache(_Int8Kernels):
    """Holds an `Int8KVCache` for Pallas kernels."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotPallasKVCache(_Kernels, BySlotKVCache):
    """Holds a `PallasKVCache` whose passes agree to the bit."""

    by_path: ClassVar[bool] = True
    kernels: ClassVar[Kernels] = "xla"


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotPallasInt8KVCache(_Int8Kernels, BySlotInt8KVCache):
    """Holds a `PallasInt8KVCache` whose passes agree to the bit."""

    by_path: ClassVar[bool] = True
    kernels: ClassVar[Kernels] = "xla"


# The cache types for kernels, by the type for XLA.
PALLAS: Mapping[type[KVCache], type[KVCache]] = MappingProxyType(
    {
        KVCache: PallasKVCache,
        Int8KVCache: PallasInt8KVCache,
        BySlotKVCache: BySlotPallasKVCache,
        BySlotInt8KVCache: BySlotPallasInt8KVCache,
    }
)


def pallas_kernels(model: _Network) -> _Network:
    """Returns a model that attends to its caches with Pallas kernels on TPUs and GPUs; elsewhere nothing changes.

    On TPUs, kernels write the caches too. Compiled for v5e, v6e, TPU7x, H100 and A100, and not run on any
    (`docs/benchmarks`).

    Args:
      model: a `LanguageModel` or a head with caches; may be sharded before or after this.

    Raises:
      TypeError: its caches are of another type.

    Example:
        >>> model = jaxspec.nn.pallas_kernels(target)
        >>> type(model.init_cache(batch=2, capacity=32)).__name__
        'PallasKVCache'
    """
    own = model.cache_type if isinstance(model, Network) else None
    if own not in (*PALLAS, *PALLAS.values()):
        names, kind = ", ".join(each.__name__ for each in PALLAS), type(model).__name__
        found = f"one of {own.__name__}" if isinstance(own, type) else f"a {kind}, which has none"
        raise TypeError(f"pallas_kernels takes a model with caches of {names}, got {found}")
    return dataclasses.replace(model, cache_type=PALLAS.get(model.cache_type, model.cache_type))


def _attend(
    queries: Float[Array, "b t g r d"],
    fresh: Fresh,
    cache: _Kernels,
    *,
    layer: int,
    scale: float,
    window: int | None,
    interpret: bool = False,
) -> Float[Array, "b t g r d"]:
    seen, positions = fresh.seen, fresh.positions[:, -queries.shape[1] :]
    by_path = cache.by_path and fresh.mask is not None
    if by_path:
        places = jnp.where(seen, jnp.cumsum(seen, axis=2, dtype=jnp.int32) - 1, -1)
    else:
        seen = seen & within(positions, fresh.positions, window)
        places = jnp.where(seen, jnp.arange(seen.shape[2], dtype=jnp.int32), -1)

    def on_device(queries, places, length, own, fed, held, sinks):
        options = {"layer": layer, "scale": scale, "by_path": by_path, "sinks": sinks, "interpret": interpret}
        return attention.attend(queries, fed, places, own, held, length, **options)

    return _on_each_device(on_device, cache, fresh, (queries, places), _oldest(positions, window))


def _attend_by_triton(
    queries: Float[Array, "b t g r d"],
    fresh: Fresh,
    cache: _Kernels,
    *,
    layer: int,
    scale: float,
    window: int | None,
    interpret: bool = False,
) -> Float[Array, "b t g r d"]:
    positions = fresh.positions[:, -queries.shape[1] :]
    seen = fresh.seen & within(positions, fresh.positions, window)

    def on_device(queries, seen, length, own, fed, held, sinks):
        options = {"layer": layer, "scale": scale, "sinks": sinks, "interpret": interpret}
        return triton.attend(queries, fed, seen, own, held, length, **options).astype(queries.dtype)

    return _on_each_device(on_device, cache, fresh, (queries, seen), _oldest(positions, window))


def _rotate(
    layout: Layout,
    queries: Float[Array, "b t g r d"],
    both: Float[Array, "b t g 2 d"],
    table: RopeTable,
    *,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    def on_device(queries, both, *table):
        queries, keys, values = fused.rotate(queries, both, table, interpret=interpret)
        return queries, keys[..., None, :], values[..., None, :]

    heads, tables = ("batch", None, "kv_heads"), [("batch", None, None)] * 2
    axes = (*heads, "queries", None), (*heads, None, None), *tables
    queries, keys, values = layout.on_each(on_device, (queries, both, *table), axes, like=(0, 1, 1))
    return queries, keys[..., 0, :], values[..., 0, :]


def _oldest(positions: Int[Array, "b t"], window: int | None) -> list[Array]:
    """Returns the first slot that each query sees; nothing without a window."""
    return [] if window is None else [positions - (window - 1)]


def _on_each_device(
    on_device: Callable[..., Array], cache: _Kernels, fresh: Fresh, asked: tuple[Array, Array], oldest: list[Array]
) -> Float[Array, "b t g r d"]:
    """Calls a kernel on each device with its rows and heads of queries, masks, keys, values and sinks."""
    held, fed, sinks = cache.slots(), cache.fed(fresh), [] if fresh.sinks is None else [fresh.sinks]

    def of_parts(queries, seen, length, *rest):
        parts = list(rest)
        own = parts.pop(0) if oldest else None
        sunk = parts.pop() if sinks else None
        half = len(parts) // 2
        return on_device(queries, seen, length, own, Slots(*parts[:half]), Slots(*parts[half:]), sunk)

    vectors = lambda x: ("batch", "kv_heads", *(None,) * (x.ndim - 2))  # noqa: E731
    arguments = (*asked, cache.length, *oldest, *fed.parts(), *held.parts(), *sinks)
    axes = [("batch", None, "kv_heads", "queries", None), ("batch", None, None), ("batch",)]
    axes += [("batch", None)] * len(oldest) + [vectors(x) for x in fed.parts()]
    axes += [(None, *vectors(x)[:-1]) for x in held.parts()] + [("kv_heads", "queries")] * len(sinks)
    return cache.layout.on_each(of_parts, arguments, tuple(axes), like=0)


def _write(layout: Layout, buffer: Array, fresh: Array, start: Array, *, interpret: bool = False) -> Array:
    slots = (None, "batch", "kv_heads", None, None)
    on_device = functools.partial(write.write, interpret=interpret)
    return layout.on_each(on_device, (buffer, fresh, start), (slots, slots, ("batch",)), like=0)
