"""Finds out how a foreign cache is laid out: which leaves hold slots, along which axes, and which an index."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

# Slots that caches are described with, nothing is allocated: more than windows have, where a context does not say less.
_MANY, _FEW = 1 << 17, 32


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Tells the axes of a leaf that holds slots, or, without any, that it is an index.

    Attributes:
      path: in its cache.
      batch: the axis of rows; `None` if there is none.
      slot: the axis of slots; `None` of an index.
    """

    path: str
    batch: int | None
    slot: int | None


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """Tells how the leaves of a foreign cache lie. Static and hashable.

    Attributes:
      tree: the cache's structure.
      leaves: one each, in its order.
    """

    tree: Any
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, init_cache: Callable[[int, int], Any], most: int | None = None) -> "SlotLayout":
        """Describes what `init_cache(batch, capacity)` returns, by its shapes for several sizes.

        Args:
          init_cache: the foreign one.
          most: the most slots that it will be asked for; `None` is without bound.

        Raises:
          ValueError: a leaf does not grow with the capacity, has no axis of rows, or is of another kind.
        """
        many = _MANY if most is None else min(_MANY, most)
        described = lambda rows, size: jax.eval_shape(lambda: init_cache(rows, size))  # noqa: E731
        few, half = described(2, min(_FEW, many // 4)), described(2, many // 2)
        other, full = described(3, many), described(2, many)
        flat, tree = jax.tree_util.tree_flatten_with_path(full)
        if not flat:
            raise ValueError(f"init_cache returned no arrays, got {full!r}; it must return a pytree of them")
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
            raise ValueError(f"all leaves of the cache must have as many slots, for a capacity of {many} got {got}")
        return cls(tree, leaves)

    def split(self, cache: Any) -> tuple[Array, ...]:
        """Returns the leaves of a cache that hold slots.

        Raises:
          ValueError: it has another structure.
        """
        leaves, tree = jax.tree.flatten(cache)
        if tree != self.tree:
            raise ValueError(f"the call must return its cache with the structure that it got, {self.tree}, got {tree}")
        return tuple(x for x, leaf in zip(leaves, self.leaves, strict=True) if leaf.slot is not None)

    def join(self, held: tuple[Array, ...], index: Int[Array, "#b"] | Int[Array, ""], like: Any) -> Any:
        """Returns a foreign cache of these slots, whose next tokens are written at `index`; `like` has its dtypes.

        Raises:
          ValueError: there is an index for each row, and the cache has one for all.
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
        """The axes of rows and of slots of each leaf that holds slots."""
        return tuple((leaf.batch or 0, leaf.slot) for leaf in self.leaves if leaf.slot is not None)


def _leaf(path: str, full: Any, few: Any, half: Any, other: Any) -> Leaf:
    """Compares the shapes of a leaf for capacities that double, and for more rows."""
    grows = [axis for axis, size in enumerate(full.shape) if half.shape[axis] != size]
    batches = [axis for axis, size in enumerate(full.shape) if other.shape[axis] != size]
    batch = batches[0] if len(batches) == 1 else None
    if not grows:
        if jnp.issubdtype(full.dtype, jnp.integer) and (full.shape == () or (full.shape, other.shape) == ((2,), (3,))):
            return Leaf(path, batch, None)
        why = "stops growing with the capacity" if few.shape != full.shape else "does not grow with the capacity"
        raise ValueError(
            f"{path} of the cache {why}, got shape {full.shape}: a ring or a state of a fixed size cannot forget "
            "rejected drafts; pass an init_cache without them, or, of a model of tunix or MaxText, take the weights by "
            "jaxspec.adopt"
        )
    if len(grows) > 1 or batch is None:
        raise ValueError(
            f"{path} of the cache must have one axis of rows and one of slots, got shape {full.shape} for 2 rows, and "
            f"{half.shape} for half the slots"
        )
    return Leaf(path, batch, grows[0])
