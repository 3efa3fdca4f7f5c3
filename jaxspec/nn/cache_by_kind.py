"""Holds the caches of a decoder whose layers keep different states of the text: one cache for each kind.

    layer           0     1     2     3
    keeps           keys  state keys  state      keys and values, or the state of a recurrence
    part, place     0, 0  1, 0  0, 1  1, 1       two caches of two layers each, stacked

If all layers are of one kind, their cache is used directly, and so are their entries.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.compiler import after
from jaxspec.core.layout import Layout
from jaxspec.core.model import Cache, Entries
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache, KVEntries


@runtime_checkable
class LayerCache(Cache, Protocol):
    """Specifies the cache of the layers of one kind."""

    @property
    def capacity(self) -> int:
        """The number of tokens that a row has room for."""
        ...


@runtime_checkable
class CacheKind(Protocol):
    """Specifies the state of the text that a layer keeps. Hashable: layers with equal kinds share a cache."""

    def empty(
        self, cache_type: type[KVCache], layout: Layout, *, layers: int, batch: int, capacity: int, dtype: DTypeLike
    ) -> LayerCache:
        """Returns an empty cache of `layers` layers, laid out on devices.

        Args:
          cache_type: the class of caches of keys and values.
          layout: the layout on devices.
          layers, batch, capacity, dtype: the sizes, and the dtype of activations.
        """
        ...

    def stack(self, entries: Sequence[Any], x: Float[Array, "b t width"]) -> Entries:
        """Stacks the entries of each layer's module; `x` is the last layer's output."""
        ...


@dataclasses.dataclass(frozen=True)
class KVKind:
    """Describes the keys and values of `heads` heads: a `KVCache` holds them."""

    heads: int
    head_dim: int

    def empty(
        self, cache_type: type[KVCache], layout: Layout, *, layers: int, batch: int, capacity: int, dtype: DTypeLike
    ) -> KVCache:
        sizes = {"layers": layers, "batch": batch, "heads": self.heads, "capacity": capacity}
        return layout.cache(cache_type.empty(**sizes, head_dim=self.head_dim, dtype=dtype).on(layout))

    def stack(self, entries: Sequence[tuple[Array, Array]], x: Float[Array, "b t width"]) -> KVEntries:
        return after_all([jnp.stack(part) for part in zip(*entries, strict=True)], x)


def after_all(stacked: Sequence[Float[Array, "l b g t h"]], x: Float[Array, "b t width"]) -> KVEntries:
    """Returns stacked keys and values as entries, ordered after `x`, the last layer's output."""
    keys, values = (after(part, x, axis=1) for part in stacked)
    return KVEntries(keys, values)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EntriesByKind:
    """Holds the entries of a `CacheByKind`, in the order of its parts."""

    parts: tuple[Entries, ...]

    def pad(self, count: int) -> Self:
        return type(self)(tuple(part.pad(count) for part in self.parts))

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        return type(self)(tuple(part.keep_path(nodes) for part in self.parts))

    def put(self, fresh: Self, start: Array | int) -> Self:
        return type(self)(tuple(part.put(new, start) for part, new in zip(self.parts, fresh.parts, strict=True)))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CacheByKind:
    """Holds one cache for each kind of layer, all of the same tokens."""

    parts: tuple[LayerCache, ...]

    @property
    def length(self) -> Int[Array, "b"]:
        return self.parts[0].length

    @property
    def capacity(self) -> int:
        """The number of tokens that a row has room for."""
        return min(part.capacity for part in self.parts)

    def append(self, entries: EntriesByKind) -> Self:
        return type(self)(tuple(part.append(new) for part, new in zip(self.parts, entries.parts, strict=True)))

    def truncate(self, length: Int[Array, "b"]) -> Self:
        return type(self)(tuple(part.truncate(length) for part in self.parts))


class Kinds:
    """Maps layers to the caches that they share.

    Attributes:
      places: for each layer, its part of the cache, and its index there.
    """

    def __init__(self, kinds: Iterable[CacheKind]):
        self._layers = collections.Counter[CacheKind]()
        numbers = []
        for kind in kinds:
            numbers.append((kind, self._layers[kind]))
            self._layers[kind] += 1
        order = list(self._layers)
        self.places = [(order.index(kind), number) for kind, number in numbers]

    @property
    def is_one(self) -> bool:
        """Whether all layers share a cache."""
        return len(self._layers) == 1

    def empty(
        self, cache_type: type[KVCache], layout: Layout, *, batch: int, capacity: int, dtype: DTypeLike
    ) -> LayerCache:
        """Returns an empty cache of all layers."""
        sizes: dict[str, Any] = {"batch": batch, "capacity": capacity, "dtype": dtype}
        parts = [kind.empty(cache_type, layout, layers=count, **sizes) for kind, count in self._layers.items()]
        return parts[0] if len(parts) == 1 else CacheByKind(tuple(parts))

    def stack(self, entries: Sequence[Any], first: int, x: Float[Array, "b t width"]) -> Any:
        """Stacks the entries of consecutive layers, from `first` on; `x` is the last layer's output."""
        by_part: list[list[Any]] = [[] for _ in self._layers]
        for (part, _), entry in zip(self.places[first : first + len(entries)], entries, strict=True):
            by_part[part].append(entry)
        parts = [kind.stack(entries, x) for kind, entries in zip(self._layers, by_part, strict=True)]
        return parts[0] if len(parts) == 1 else EntriesByKind(tuple(parts))


def part_of(whole: Any, number: int) -> Any:
    """Returns a part of a cache or of entries; all of it if there is one kind."""
    return whole.parts[number] if isinstance(whole, CacheByKind | EntriesByKind) else whole
