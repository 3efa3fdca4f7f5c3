"""Holds a foreign cache's slots for rows of other lengths, and what a pass leaves of its tokens."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.order import after
from jaxspec.core.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotEntries:
    """Holds the slots of fed tokens, leaf by leaf.

    Attributes:
      leaves: slices of the foreign cache's.
      axes: of rows and slots, for each.
    """

    leaves: tuple[Array, ...]
    axes: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})

    @property
    def count(self) -> int:
        """The number of tokens."""
        return self.leaves[0].shape[self.axes[0][1]]

    def pad(self, count: int) -> Self:
        """Returns the same entries followed by stale ones, `count` in all."""

        def padded(x: Array, slot: int) -> Array:
            return jnp.pad(x, [(0, count - size if axis == slot else 0) for axis, size in enumerate(x.shape)])

        return self._each(lambda x, _, slot: padded(x, slot))

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        """Returns each row's entries at `nodes`, side by side."""

        def kept(x: Array, batch: int, slot: int) -> Array:
            shape = [nodes.shape[(batch, slot).index(axis)] if axis in (batch, slot) else 1 for axis in range(x.ndim)]
            at = nodes if batch < slot else nodes.T
            return jnp.take_along_axis(x, at.reshape(shape), axis=slot)

        return self._each(kept)

    def put(self, fresh: Self, start: Int[Array, ""] | int) -> Self:
        """Returns the same entries with `fresh` written over those from `start` on."""
        leaves = [
            jax.lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), start, axis=slot)
            for x, new, (_, slot) in zip(self.leaves, fresh.leaves, self.axes, strict=True)
        ]
        return dataclasses.replace(self, leaves=tuple(leaves))

    def after(self, logits: Float[Array, "b t v"]) -> Self:
        """Returns the same entries, computed only after the pass has read the cache."""
        return self._each(lambda x, batch, _: after(x, logits, axis=batch))

    def _each(self, function: Any) -> Self:
        pairs = zip(self.leaves, self.axes, strict=True)
        return dataclasses.replace(self, leaves=tuple(function(x, *axes) for x, axes in pairs))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotCache:
    """Holds a foreign cache's slots. Row `b` has its tokens in `[first, first + length[b])`.

    Attributes:
      leaves: those that hold slots.
      length: tokens of each row.
      axes: of rows and slots, for each leaf.
      first: slots before those of a text, which every pass writes over.
    """

    leaves: tuple[Array, ...]
    length: Int[Array, "b"]
    axes: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})
    first: int = dataclasses.field(metadata={"static": True})

    @property
    def slots(self) -> int:
        """The number of slots, with those before the text's."""
        return self.leaves[0].shape[self.axes[0][1]]

    def append(self, entries: SlotEntries) -> Self:
        """Stores the entries of fed tokens, each row at its own length."""
        leaves = self.written(entries, self.first + self.length)
        return dataclasses.replace(self, leaves=leaves, length=self.length + entries.count)

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Forgets every token at or after `length`, row by row."""
        return dataclasses.replace(self, length=length)

    def written(self, entries: SlotEntries, start: Int[Array, "b"]) -> tuple[Array, ...]:
        """Returns the leaves with entries written at `start`, row by row: not every platform scatters in place."""

        def of_row(row: Array, leaves: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(
                _write(x, new.astype(x.dtype), axes, row, start[row])
                for x, new, axes in zip(leaves, entries.leaves, self.axes, strict=True)
            )

        return jax.lax.fori_loop(0, start.shape[0], of_row, self.leaves)

    def read(self, leaves: tuple[Array, ...], start: Int[Array, "b"] | Int[Array, ""], count: int) -> SlotEntries:
        """Returns `count` slots of these leaves from `start` on, which is one for all rows or one each."""

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
