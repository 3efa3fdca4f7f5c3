"""Moves rows between states, whose arrays may have the batch on any axis.

state     a b c d     a cache `[layer, row, ...]`, its lengths `[row]`, ...
take      c           row 2, as a state of one row
insert    a x c d     that of another state, in the place of row 1
gather    d d a       any rows, to another width
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core.typed import typed
from jaxspec.core.validate import shown

_State = TypeVar("_State")


@dataclasses.dataclass(frozen=True)
class RowAxes:
    """Records the batch axis of each leaf of a state. Static and hashable.

    Rows and slots may be traced: jit the methods, and donate the state that `insert` replaces. If rows are split over
    devices, one row moves at a time and no array is gathered.

    Attributes:
      tree: the structure of the state.
      axes: the batch axis of each leaf, in order; `None` if all rows share the leaf.

    Example:
        >>> axes = jaxspec.core.row_axes(lambda batch: target.init_cache(batch, 32))
        >>> cache = target.init_cache(4, 32).truncate(jnp.asarray([5, 6, 7, 8], jnp.int32))
        >>> axes.take(cache, 2).length.tolist()
        [7]
        >>> axes.insert(cache, axes.take(cache, 2), 0).length.tolist()
        [7, 6, 7, 8]
        >>> axes.gather(cache, jnp.asarray([3, 3, 0])).length.tolist()
        [8, 8, 5]
    """

    tree: Any
    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, axes: Any) -> Self:
        """Makes them from a tree like the state, with an axis for each array; -1 if rows share it."""
        flat, tree = jax.tree.flatten(axes)
        if wrong := [one for one in flat if not isinstance(one, int | np.integer)]:
            raise TypeError(f"axes must be a tree of integers, got {shown(wrong[0])} in it; -1 if rows share an array")
        return cls(tree, tuple(None if axis < 0 else axis for axis in flat))

    def count(self, state: Any) -> int:
        """Returns the number of rows of a state."""
        return next(x.shape[axis] for x, axis in zip(self._leaves(state), self.axes, strict=True) if axis is not None)

    def take(self, state: _State, row: Int[Array, ""] | int) -> _State:
        """Returns one row, as a state of batch size 1."""
        # A gather: slicing a split axis at a traced row would first gather the complete array.
        at = jnp.asarray(row, jnp.int32)[None]
        return self._each(lambda x, axis: jnp.take(x, at, axis=axis, mode="clip"), state)

    def insert(self, state: _State, row_state: _State, slot: Int[Array, ""] | int) -> _State:
        """Replaces row `slot` of the state with `row_state`, a state of one row.

        Raises:
          ValueError: the shape of an array differs from that of the state's rows.
        """
        slot = jnp.asarray(slot, jnp.int32)
        write = lambda x, axis, row: jax.lax.dynamic_update_slice_in_dim(x, row, slot, axis)  # noqa: E731
        self._check_fits(state, row_state)
        return self._each(write, state, self._leaves(row_state))

    def gather(self, state: _State, rows: Int[Array, "n"]) -> _State:
        """Returns the state's rows at these indices, in this order; indices may repeat."""
        width, count = rows.shape[0], self.count(state)
        # The buffer to overwrite: if possible made from the state itself, so that its rows are split alike.
        wide = self.repeat(state, width // count) if width % count == 0 else self.repeat(self.take(state, 0), width)
        put = lambda slot, wide: self.insert(wide, self.take(state, rows[slot]), slot)  # noqa: E731
        return jax.lax.fori_loop(0, width, put, wide)

    def repeat(self, state: _State, count: int) -> _State:
        """Repeats each row `count` times, copies adjacent."""
        return self._each(lambda x, axis: _repeat(x, axis, count), state)

    def _each(self, function: Callable[..., Array], state: _State, *others: list[Array]) -> _State:
        """Replaces each leaf that has rows by `function(leaf, axis, *others)`."""
        leaves = zip(self._leaves(state), self.axes, *others, strict=True)
        changed = [x if axis is None else function(x, axis, *rest) for x, axis, *rest in leaves]
        return jax.tree.unflatten(self.tree, changed)

    def _leaves(self, state: Any) -> list[Array]:
        leaves, tree = jax.tree.flatten(state)
        if tree != self.tree:
            raise ValueError(f"expected a state with the structure {self.tree}, got {tree}")
        return leaves

    def _check_fits(self, state: Any, row_state: Any) -> None:
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
        pairs = zip(paths, self.axes, self._leaves(state), self._leaves(row_state), strict=True)
        for path, axis, x, row in pairs:
            expected = x.shape if axis is None else (*x.shape[:axis], 1, *x.shape[axis + 1 :])
            if row.shape != expected:
                raise ValueError(
                    f"{path or 'the state'} has shape {x.shape}, so its rows have shape {expected}, got {row.shape}; "
                    "take the row from a state of the same sizes"
                )


@typed("make")
def row_axes(make: Callable[..., Any], *parts: Any) -> RowAxes:
    """Finds the batch axis of each array by comparing shapes for two and for three rows, without computing anything.

    Args:
      make: `make(batch, *parts)` returns a state of `batch` rows.
      parts: pytrees of arrays to make it from; only their shapes matter. If given, the result is cached by `make` and
        their structure.

    Raises:
      ValueError: several axes of an array grow with the rows, or the size of one is not the batch size.

    Example:
        >>> start = lambda batch: jaxspec.init(target, None, jnp.tile(prompt[:1], (batch, 1)), max_new_tokens=8)
        >>> axes = jaxspec.core.row_axes(start)
        >>> one_more = jax.jit(axes.insert, donate_argnums=0)
        >>> state = one_more(start(3), axes.take(start(2), 1), 2)
        >>> state.length.tolist(), state.cache.length.tolist()
        ([5, 5, 5], [4, 4, 4])
    """
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda *parts: parts, *parts))
    return (_cached if parts else _find)(make, tree, tuple(leaves))


def changed_axes(one: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    """Returns the axes in which two shapes differ."""
    return [axis for axis, (size, more) in enumerate(zip(one, other, strict=True)) if size != more]


def _find(make: Callable[..., Any], tree: Any, leaves: tuple[Any, ...]) -> RowAxes:
    parts = jax.tree.unflatten(tree, leaves)
    two, three = (jax.eval_shape(functools.partial(make, batch), *parts) for batch in (2, 3))
    flat, tree = jax.tree_util.tree_flatten_with_path(two)
    pairs = zip(flat, jax.tree.leaves(three), strict=True)
    return RowAxes(tree, tuple(_axis(jax.tree_util.keystr(path), x.shape, y.shape) for (path, x), y in pairs))


_cached = functools.lru_cache(maxsize=64)(_find)


def _axis(path: str, two: tuple[int, ...], three: tuple[int, ...]) -> int | None:
    axes = changed_axes(two, three)
    if not axes:
        return None
    if len(axes) > 1 or (two[axes[0]], three[axes[0]]) != (2, 3):
        raise ValueError(
            f"rows need a separate axis in every array: {path or 'the state'} has shape {two} for 2 rows and "
            f"{three} for 3; keep rows in an axis without anything else"
        )
    return axes[0]


def _repeat(x: Array, axis: int, count: int) -> Array:
    # By broadcasting, so that rows stay on their devices.
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), (*before, size, count, *after))
    return wide.reshape(*before, size * count, *after)
