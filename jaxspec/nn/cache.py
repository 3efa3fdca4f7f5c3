"""Holds keys and values in preallocated arrays, with a length per row, which a roll-back decreases.

Slots at or beyond a row's length are stale. They are masked by position and overwritten by the next write, never
zeroed: a zeroed key would still add e^0 to the softmax.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Shaped

from jaxspec.core.compiler import kept_form
from jaxspec.core.layout import Layout
from jaxspec.core.model import Kernels
from jaxspec.core.parts import on_one_device
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed
from jaxspec.core.validate import dtype_of
from jaxspec.ops.rope import RopeTable, rotate

# Attention reads the cache in blocks of this size, so that its cost depends on the used part.
BLOCK = 256
# The bounds of a cache's sizes, and the types of its numbers.
SIZES = {"layers": (0, 2**20), "batch": (0, 2**31 - 1), "heads": (1, 2**20), "capacity": (0, 2**31 - 1)}
SIZES |= {"head_dim": (1, 2**20)}
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
# The slots of a TPU tile.
_TILE = 8
# The rows of a cache that a CPU writes per loop iteration.
_UNROLLED = 8
# A layer's index among those that share a cache; traced in a loop over layers.
LayerNumber = Int[Array, ""] | int


@register_dataclass
@dataclasses.dataclass(frozen=True)
class KVEntries:
    """Holds the keys and values of fed tokens that are not in a cache yet: the `jaxspec.core.Entries` of a `KVCache`.

    Example:
        >>> output = target(prompt, target.init_cache(batch=2, capacity=32))
        >>> output.entries.keys.shape[0] == target.module.config.num_layers
        True
    """

    keys: Float[Array, "l b g t d"]
    values: Float[Array, "l b g t d"]

    def pad(self, count: int) -> Self:
        """Pads the entries with stale ones, to `count` tokens in all."""
        return jax.tree.map(lambda x: _pad_axis(x, 3, count), self)

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        """Gathers each row's entries at `nodes`: a tree's accepted path, ready to append.

        Keys already contain their position, so moving them to other slots changes nothing.
        """
        at = nodes[None, :, None, :, None]
        return jax.tree.map(lambda x: jnp.take_along_axis(x, at, axis=3), self)

    def put(self, fresh: Self, start: Array | int) -> Self:
        """Overwrites the entries from `start` on with `fresh`."""
        write = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), start, axis=3)  # noqa: E731
        return jax.tree.map(write, self, fresh)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Holds keys and values of every layer, and the number of tokens that each row holds.

    Attributes:
      keys: the keys by layer, row, key-value head and slot.
      values: the values by layer, row, key-value head and slot.
      length: the number of tokens of each row, in its first slots.
      positions: the positions of the slots' tokens, if they differ from the slots: after `sinks_and_window`.
      kernels: the kernels of a model with such caches on accelerators.

    Example:
        >>> cache = target.init_cache(batch=2, capacity=32)
        >>> type(cache).__name__, cache.length.tolist(), cache.capacity >= 32
        ('KVCache', [0, 0], True)
    """

    keys: Float[Array, "l b g s d"]
    values: Float[Array, "l b g s d"]
    length: Int[Array, "b"]
    positions: Int[Array, "b s"] | None = dataclasses.field(default=None, kw_only=True)

    kernels: ClassVar[Kernels] = "xla"

    @classmethod
    @typed(**SIZES)
    def empty(cls, *, layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Self:
        """Returns an empty cache of `capacity` slots per row, rounded up to complete attention blocks."""
        dtype = dtype_of("dtype", dtype, DTYPES)
        capacity = -(-capacity // BLOCK) * BLOCK
        shape = (layers, batch, heads, capacity, head_dim)
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))

    @property
    def capacity(self) -> int:
        """The number of slots of each row."""
        return self.keys.shape[3]

    def block(self, layer: LayerNumber, start: Int[Array, "*b"], count: int) -> tuple[Array, Array]:
        """Reads a layer's keys and values in `count` slots of every row, `[b, g, count, d]` each.

        `start` is one for all rows, or one per row.
        """
        return slots(self.keys, layer, start, count), slots(self.values, layer, start, count)

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
        """Computes `jaxspec.nn.attention.attend` over a layer: here with `default(queries, fresh, self)`."""
        return default(queries, fresh, self)

    def rotate(
        self, queries: Float[Array, "b t g r d"], both: Float[Array, "b t g 2 d"], table: RopeTable
    ) -> tuple[Float[Array, "b t g r d"], Float[Array, "b t g d"], Float[Array, "b t g d"]]:
        """Rotates queries and keys by their positions; returns them and the values."""
        return rotate(queries, table), rotate(both[..., 0, :], table), both[..., 1, :]

    def fake_quant(self, x: Float[Array, "b t g d"]) -> Float[Array, "b t g d"]:
        """Rounds fresh keys or values like the cache: here not at all."""
        return x

    def append(self, entries: KVEntries) -> Self:
        """Writes each row's entries at its length.

        The caller ensures `length + t <= capacity`.
        """
        return dataclasses.replace(
            self,
            keys=self.write(self.keys, entries.keys, self.length),
            values=self.write(self.values, entries.values, self.length),
            length=self.length + entries.keys.shape[3],
        )

    def write(
        self, buffer: Shaped[Array, "l b g s d"], fresh: Shaped[Array, "l b g t d"], start: Int[Array, "b"]
    ) -> Shaped[Array, "l b g s d"]:
        """Writes each row's fresh slots into a buffer of the cache from `start` on."""
        return write(buffer, fresh, start)

    def on(self, layout: Layout) -> Self:
        """Sets the layout of the arrays on devices, for the cache's kernels: here unused."""
        del layout
        return self

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Rolls each row back to `length` tokens. Free: the slots beyond become stale."""
        return dataclasses.replace(self, length=length)

    def sinks_and_window(self, first: int, last: int, room: int) -> Self:
        """Returns a small cache of each row's first and last tokens, with `room` for more after them.

        Keys already contain their position. With `first=2, last=3, room=2`:

            row 0   a b c d e f g h    ->   a b f g h . .    positions 0 1 5 6 7 8 9
            row 1   a b c . . . . .    ->   a b c . . . .    positions 0 1 2 3 4 5 6
        """
        held = min(first + last, self.capacity)
        first = min(first, held)
        left_out = jnp.maximum(self.length - held, 0)
        slots = -(-(held + room) // _TILE) * _TILE
        window = jax.vmap(
            lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, held - first, axis=2), in_axes=(1, 0), out_axes=1
        )

        def take(x):
            both = jnp.concatenate([x[:, :, :, :first], window(x, first + left_out)], axis=3)
            return _pad_axis(both, 3, slots)

        numbers = jnp.arange(slots, dtype=jnp.int32)[None]
        positions = numbers + jnp.where(numbers < first, 0, left_out[:, None])
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        taken = {name: take(x) for name, x in fields.items() if getattr(x, "ndim", 0) == self.keys.ndim}
        return dataclasses.replace(self, **taken, length=jnp.minimum(self.length, held), positions=positions)


def _pad_axis(x: Array, axis: int, count: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, count - x.shape[axis])
    return jnp.pad(x, widths)


def slots(buffer: Shaped[Array, "l b g s d"], layer: LayerNumber, start: Int[Array, "*b"], count: int) -> Array:
    """Reads `count` slots of a layer, of every row, `[b, g, count, d]`."""
    if start.ndim:
        # A CPU copies the source of a gather: there rows are read one by one, or on a mesh a layer is copied.
        cpu = kept_form(_row_by_row if on_one_device() else _of_layer, layer=layer, count=count)
        default = kept_form(_of_rows, layer=layer, count=count)
        return jax.lax.platform_dependent(buffer, start, cpu=cpu, default=default)
    _, batch, heads, _, width = buffer.shape
    zero = jnp.zeros((), start.dtype)
    index = (jnp.full((), layer, start.dtype), zero, zero, start, zero)
    return jax.lax.dynamic_slice(buffer, index, (1, batch, heads, count, width))[0]


def _row_by_row(buffer: Array, start: Int[Array, "b"], *, layer: LayerNumber, count: int) -> Array:
    _, batch, heads, _, width = buffer.shape
    first, zero = jnp.full((), layer, start.dtype), jnp.zeros((), start.dtype)

    def take(each: tuple[Array, Array]) -> Array:
        return jax.lax.dynamic_slice(buffer, (first, each[0], zero, each[1], zero), (1, 1, heads, count, width))[0, 0]

    return jax.lax.map(take, (jnp.arange(batch, dtype=start.dtype), start))


def _of_layer(buffer: Array, start: Int[Array, "b"], *, layer: LayerNumber, count: int) -> Array:
    return _of_rows(buffer[layer : layer + 1], start, layer=0, count=count)


def _of_rows(buffer: Array, start: Int[Array, "b"], *, layer: LayerNumber, count: int) -> Array:
    _, _, heads, _, width = buffer.shape
    first, zero = jnp.full((), layer, start.dtype), jnp.zeros((), start.dtype)
    # By a batch axis of the gather, so that a device with some of the rows does not request the others.
    take = lambda row, at: jax.lax.dynamic_slice(row, (first, zero, at, zero), (1, heads, count, width))[0]  # noqa: E731
    return jax.vmap(take, in_axes=(1, 0))(buffer, start)


def write(
    buffer: Shaped[Array, "l b g s d"], fresh: Shaped[Array, "l b g t d"], start: Int[Array, "b"]
) -> Shaped[Array, "l b g s d"]:
    """Writes each row's fresh slots into the buffer from `start` on."""
    fresh = fresh.astype(buffer.dtype)
    by_row = {"cpu": _write_row_by_row, "cuda": _write_row_by_row}
    return jax.lax.platform_dependent(buffer, fresh, start, **by_row, tpu=_write_tiles, default=_write_rows)


def _write_tiles(buffer: Array, fresh: Array, start: Int[Array, "b"]) -> Array:
    """Reads the tiles that hold the fresh slots, and writes complete tiles back.

    To update single slots, of the cache or of such tiles, the compiler would give the cache another layout than
    attention reads, and copy all of it on every step. So slots are selected within their tiles.
    """
    capacity, count = buffer.shape[3], fresh.shape[3]
    window = min(-(-(count + _TILE - 1) // _TILE) * _TILE, capacity)
    first = jnp.minimum(start // _TILE * _TILE, capacity - window)
    in_each_row = functools.partial(jax.vmap, in_axes=(1, 1, 0), out_axes=1)
    take = jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, window, axis=2), in_axes=(1, 0), out_axes=1)
    put = in_each_row(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, axis=2))
    held = take(buffer, first)
    if count == 1:
        chosen = jnp.arange(window, dtype=start.dtype)[None] == (start - first)[:, None]
        return put(buffer, jnp.where(chosen[None, :, None, :, None], fresh, held), first)
    return put(buffer, put(held, fresh, start - first), first)


def _write_rows(buffer: Array, fresh: Array, start: Int[Array, "b"]) -> Array:
    write = jax.vmap(
        lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, axis=2), in_axes=(1, 1, 0), out_axes=1
    )
    return write(buffer, fresh, start)


def _write_row_by_row(buffer: Array, fresh: Array, start: Int[Array, "b"]) -> Array:
    # A CPU runs the scatter above as a copy of the whole buffer, and so does a GPU for several rows; this is in place.
    zero = jnp.zeros((), start.dtype)

    def put(row: Array, buffer: Array) -> Array:
        new = jax.lax.dynamic_slice_in_dim(fresh, row, 1, axis=1)
        return jax.lax.dynamic_update_slice(buffer, new, (zero, row.astype(start.dtype), zero, start[row], zero))

    # A few rows are unrolled; more are a loop, so that the program's size does not grow with them.
    return jax.lax.fori_loop(0, buffer.shape[1], put, buffer, unroll=min(_UNROLLED, buffer.shape[1]))
