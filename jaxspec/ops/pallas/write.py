"""Writes fresh tokens into a cache in place: one TPU kernel that reads and writes only the tiles that hold them.

The layout is the one that attention reads (`jaxspec.ops.pallas.attention`): a write of XLA's asks for another, and the
compiler copies the cache from one to the other.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int, Shaped

from jaxspec.ops.pallas.memory import in_main_memory, like
from jaxspec.ops.pallas.place import place

# Slots of a tile: whole tiles of a TPU in float32, bfloat16 and int8.
TILE = 32
# Of the layers that one visit writes, of one buffer.
_MOST_BYTES = 2**20


def write(
    buffer: Shaped[Array, "l b g s d"],
    fresh: Shaped[Array, "l b g t d"],
    start: Int[Array, "b"],
    *,
    interpret: bool = False,
) -> Shaped[Array, "l b g s d"]:
    """Writes each row's fresh slots into the buffer from `start` on, and drops those beyond its end."""
    if interpret:
        return _write(buffer, fresh, start, interpret=True)
    # A loop of one trip, which the compiler does not know: a buffer that the caller donates, and that nothing but this
    # kernel reads, cannot be pinned to the main memory outside of loops.
    once = lambda carry: (jnp.zeros((), jnp.bool_), _write(carry[1], fresh, start, interpret=False))  # noqa: E731
    with jax.named_scope("in_place"):
        return jax.lax.while_loop(lambda carry: carry[0], once, (start[0] >= 0, buffer))[1]


def _write(buffer: Array, fresh: Array, start: Array, *, interpret: bool) -> Array:
    layers, batch, heads, capacity, width = buffer.shape
    count, fresh = fresh.shape[3], fresh.astype(buffer.dtype)
    tiles = (count + 2 * (TILE - 1)) // TILE
    together = _divisor(layers, _MOST_BYTES // (heads * max(TILE, count) * width * buffer.dtype.itemsize))

    def touched(part: Any, row: Any, tile: Any, start: Any) -> tuple[Any, ...]:
        # One beyond the last that is touched is the last once more, and not read again.
        first, last = start[row], jnp.minimum(start[row] + (count - 1), capacity - 1)
        index = jax.lax.div(first, jnp.int32(TILE)) + tile
        return part, row, 0, jnp.minimum(index, jax.lax.div(last, jnp.int32(TILE))), 0

    block = pl.BlockSpec((together, 1, heads, TILE, width), touched)
    added = pl.BlockSpec((together, 1, heads, count, width), lambda part, row, tile, start: (part, row, 0, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel, touched),
        out_shape=like(buffer, interpret=interpret),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(layers // together, batch, tiles),
            in_specs=[added, block],
            out_specs=block,
        ),
        input_output_aliases={2: 0},
        interpret=interpret,
        name="write",
    )(start, fresh, in_main_memory(buffer, interpret=interpret))


def _kernel(touched: Any, start: Any, fresh: Any, held: Any, out: Any) -> None:
    part, row, tile = (pl.program_id(axis) for axis in range(3))
    behind = touched(part, row, tile, start)[3] * TILE - start[row]
    own = jax.lax.broadcasted_iota(jnp.int32, (1, fresh.shape[3]), 1)

    def put(layer, _):
        for head in range(fresh.shape[2]):
            cached = held[layer, 0, head]
            placed = place(own, behind, fresh[layer, 0, head], cached)
            slots = behind + jax.lax.broadcasted_iota(jnp.int32, (TILE, 1), 0)
            out[layer, 0, head] = jnp.where(slots < fresh.shape[3], placed, cached)

    jax.lax.fori_loop(0, fresh.shape[0], put, None)


def _divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number that is at most `most`, 1 at least."""
    return next(part for part in range(max(min(number, most), 1), 0, -1) if number % part == 0)
