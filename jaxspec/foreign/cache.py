"""Describes the layout of a foreign cache, and holds its slots for rows of different lengths.

A leaf holds slots along one of its axes, or is an index. The entries of a pass are the slots of its tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import validate
from jaxspec.core.compiler import after
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import changed_axes

# Capacities to compare shapes at, without allocation. The larger one exceeds windows, unless the context is shorter.
_MANY, _FEW = 1 << 17, 32


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Describes a leaf that holds slots, or is an index.

    Attributes:
      path: the path in the cache.
      batch: the axis of rows; `None` if there is none.
      slot: the axis of slots; `None` for an index.
    """

    path: str
    batch: int | None
    slot: int | None


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """Describes the leaves of a foreign cache. Static and hashable.

    Attributes:
      tree: the cache's structure.
      leaves: the descriptions of its leaves, in order.
    """

    tree: Any
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, init_cache: Callable[[int, int], Any], most: int | None = None) -> "SlotLayout":
        """Describes the cache that `init_cache(batch, capacity)` returns, by its shapes for several sizes.

        Args:
          init_cache: the foreign function.
          most: the largest capacity that it will be called with; `None` means unbounded.

        Raises:
          ValueError: a leaf does not grow with the capacity, has no axis of rows, or is of another kind.
        """
        many = _MANY if most is None else min(_MANY, most)

        def made(rows: int, size: int) -> Any:
            cache = init_cache(rows, size)
            if cache is not None:
                validate.arrays("the cache of init_cache", cache)
            return cache

        described = lambda rows, size: jax.eval_shape(lambda: made(rows, size))  # noqa: E731
        few, half = described(2, min(_FEW, many // 4)), described(2, many // 2)
        other, full = described(3, many), described(2, many)
        flat, tree = jax.tree_util.tree_flatten_with_path(full)
        if not flat:
            raise ValueError(
                f"init_cache returned no arrays, got {validate.shown(full)}; it must return a pytree of them"
            )
        trees = [jax.tree.leaves(x) for x in (few, half, other)]
        paths = [(jax.tree_util.keystr(path) or "the cache", x) for path, x in flat]
        leaves = tuple(_leaf(path, x, *rest) for (path, x), *rest in zip(paths, *trees, strict=True))
        sizes = {
            x.shape[leaf.slot or 0]: leaf.path
            for leaf, (_, x) in zip(leaves, paths, strict=True)
            if leaf.slot is not None
        }
        if len(sizes) > 1:
            got = " and ".join(f"{path} {size}" for size, path in sizes.items())
            raise ValueError(f"leaves of the cache must have equally many slots, got {got} for a capacity of {many}")
        return cls(tree, leaves)

    def split(self, cache: Any) -> tuple[Array, ...]:
        """Returns the leaves of a cache that hold slots.

        Raises:
          ValueError: the cache has another structure.
        """
        leaves, tree = jax.tree.flatten(cache)
        if tree != self.tree:
            raise ValueError(f"the call must not change the structure of its cache, {self.tree}, got {tree}")
        return tuple(x for x, leaf in zip(leaves, self.leaves, strict=True) if leaf.slot is not None)

    def join(self, held: tuple[Array, ...], index: Int[Array, "#b"] | Int[Array, ""], like: Any) -> Any:
        """Makes a foreign cache of these slots, which writes the next tokens at `index`, with the dtypes of `like`.

        Raises:
          ValueError: there is one index per row, but the cache has one for all.
        """
        slots, leaves = iter(held), []
        for leaf, own in zip(self.leaves, jax.tree.leaves(like), strict=True):
            if leaf.slot is not None:
                leaves.append(next(slots))
                continue
            if index.ndim > len(own.shape):
                raise ValueError(
                    f"{leaf.path} of the cache is one index for all rows, got cache_index='per_row'; pass 'shared' if "
                    "the call takes any mask, else 'scalar'"
                )
            leaves.append(jnp.broadcast_to(index, own.shape).astype(own.dtype))
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def axes(self) -> tuple[tuple[int, int], ...]:
        """The axis of rows and the axis of slots, for each leaf that holds slots."""
        return tuple((leaf.batch or 0, leaf.slot) for leaf in self.leaves if leaf.slot is not None)


def _leaf(path: str, full: Any, few: Any, half: Any, other: Any) -> Leaf:
    """Describes a leaf by comparing its shapes for several capacities, and for more rows."""
    grows, batches = changed_axes(full.shape, half.shape), changed_axes(full.shape, other.shape)
    batch = batches[0] if len(batches) == 1 else None
    if not grows:
        if jnp.issubdtype(full.dtype, jnp.integer) and (full.shape == () or (full.shape, other.shape) == ((2,), (3,))):
            return Leaf(path, batch, None)
        why = "stops growing with the capacity" if few.shape != full.shape else "does not grow with the capacity"
        raise ValueError(
            f"{path} of the cache {why}, got shape {full.shape}: a ring or a state of a fixed size cannot forget "
            "rejected drafts; pass an init_cache without them, or copy the weights of a tunix or MaxText model with "
            "jaxspec.adopt"
        )
    if len(grows) > 1 or batch is None:
        raise ValueError(
            f"{path} of the cache must have one axis of rows and one of slots, got shape {full.shape} for 2 rows, and "
            f"{half.shape} for half the slots"
        )
    return Leaf(path, batch, grows[0])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotEntries:
    """Holds the slots of fed tokens.

    Attributes:
      leaves: slices of the foreign cache's leaves.
      axes: the axes of rows and slots, for each leaf.
    """

    leaves: tuple[Array, ...]
    axes: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})

    @property
    def count(self) -> int:
        """The number of tokens."""
        return self.leaves[0].shape[self.axes[0][1]]

    def pad(self, count: int) -> Self:
        """Pads the entries with stale ones, to `count` tokens in all."""

        def padded(x: Array, slot: int) -> Array:
            return jnp.pad(x, [(0, count - size if axis == slot else 0) for axis, size in enumerate(x.shape)])

        return self._each(lambda x, _, slot: padded(x, slot))

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        """Gathers each row's entries at `nodes`, in that order."""

        def kept(x: Array, batch: int, slot: int) -> Array:
            shape = [nodes.shape[(batch, slot).index(axis)] if axis in (batch, slot) else 1 for axis in range(x.ndim)]
            at = nodes if batch < slot else nodes.T
            return jnp.take_along_axis(x, at.reshape(shape), axis=slot)

        return self._each(kept)

    def put(self, fresh: Self, start: Int[Array, ""] | int) -> Self:
        """Overwrites the entries from `start` on with `fresh`."""
        leaves = [
            jax.lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), start, axis=slot)
            for x, new, (_, slot) in zip(self.leaves, fresh.leaves, self.axes, strict=True)
        ]
        return dataclasses.replace(self, leaves=tuple(leaves))

    def after(self, logits: Float[Array, "b t v"]) -> Self:
        """Orders the entries after the pass, which reads the cache."""
        return self._each(lambda x, batch, _: after(x, logits, axis=batch))

    def _each(self, function: Any) -> Self:
        pairs = zip(self.leaves, self.axes, strict=True)
        return dataclasses.replace(self, leaves=tuple(function(x, *axes) for x, axes in pairs))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotCache:
    """Holds a foreign cache's slots. Row `b` has its tokens in `[first, first + length[b])`.

    Attributes:
      leaves: the leaves that hold slots.
      length: the number of tokens of each row.
      axes: the axes of rows and slots, for each leaf.
      first: the number of slots before a text, which every pass overwrites.
    """

    leaves: tuple[Array, ...]
    length: Int[Array, "b"]
    axes: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})
    first: int = dataclasses.field(metadata={"static": True})

    @property
    def slots(self) -> int:
        """The number of slots, including those before a text."""
        return self.leaves[0].shape[self.axes[0][1]]

    def append(self, entries: SlotEntries) -> Self:
        """Stores the entries of fed tokens at each row's length."""
        leaves = self.written(entries, self.first + self.length)
        return dataclasses.replace(self, leaves=leaves, length=self.length + entries.count)

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Cuts each row to `length` tokens."""
        return dataclasses.replace(self, length=length)

    def written(self, entries: SlotEntries, start: Int[Array, "b"]) -> tuple[Array, ...]:
        """Returns the leaves with entries written at `start`, row by row, as not every platform scatters in place."""

        def of_row(row: Array, leaves: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(
                _write(x, new.astype(x.dtype), axes, row, start[row])
                for x, new, axes in zip(leaves, entries.leaves, self.axes, strict=True)
            )

        return jax.lax.fori_loop(0, start.shape[0], of_row, self.leaves)

    def read(self, leaves: tuple[Array, ...], start: Int[Array, "b"] | Int[Array, ""], count: int) -> SlotEntries:
        """Returns `count` slots of these leaves from `start` on, one start for all rows or one per row."""

        def of_leaf(x: Array, batch: int, slot: int) -> Array:
            if start.ndim == 0:
                return jax.lax.dynamic_slice_in_dim(x, start, count, axis=slot)
            take = lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, count, axis=slot - (batch < slot))  # noqa: E731
            return jax.vmap(take, in_axes=(batch, 0), out_axes=batch)(x, start)

        return SlotEntries(tuple(of_leaf(x, *axes) for x, axes in zip(leaves, self.axes, strict=True)), self.axes)


def _write(x: Array, fresh: Array, axes: tuple[int, int], row: Array, slot: Array) -> Array:
    one = jax.lax.dynamic_index_in_dim(fresh, row, axis=axes[0])
    at = [{axes[0]: row, axes[1]: slot}.get(axis, jnp.zeros((), row.dtype)) for axis in range(x.ndim)]
    return jax.lax.dynamic_update_slice(x, one, [place.astype(row.dtype) for place in at])
