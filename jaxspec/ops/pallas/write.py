"""Writes fresh tokens into a cache in place: one TPU kernel that reads and writes only the tiles that hold them.

The layout is the one that attention reads (`jaxspec.ops.pallas.attention`). XLA's own write needs another, and the
compiler would copy the cache between them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int, Shaped


def in_main_memory(x: Array, *, interpret: bool) -> Array:
    """Keeps a cache in main memory: the compiler would move all of it to the chip and back, to read a part of it there.

    Args:
      x: an operand of a kernel; if it is aliased to a result, the result must be `like` it.
      interpret: whether the kernel runs as ordinary operations, which have only one memory.
    """
    return x if interpret else pltpu.with_memory_space_constraint(x, pltpu.HBM)


def like(x: Array, *, interpret: bool) -> Any:
    """Returns the shape of a result that aliases such an operand."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if interpret else pltpu.HBM(x.shape, x.dtype)


def place(
    places: Int[Array, "1 u"], offset: Any, fresh: Shaped[Array, "u d"], cached: Shaped[Array, "s d"]
) -> Shaped[Array, "s d"]:
    """Returns the slots with each fresh vector at its place, and zeros in the other slots after the cached ones.

    Args:
      places: the place of each vector after the last cached slot, from 0; negative for none.
      offset: the place of the first slot; negative if it is cached.
      fresh: the fresh vectors.
      cached: the contents of the slots; stale from place 0 on.
    """
    slots = offset + jax.lax.broadcasted_iota(jnp.int32, (cached.shape[0], 1), 0)
    # Each slot sums one vector times one: exact.
    placed = product((slots == places).astype(_exact(fresh.dtype)), fresh.astype(_exact(fresh.dtype)), 0)
    return jnp.where(slots < 0, cached, placed.astype(cached.dtype))


def place_row(
    places: Int[Array, "1 u"], offset: Any, fresh: Float[Array, "1 u"], cached: Float[Array, "1 s"]
) -> Float[Array, "1 s"]:
    """Computes `place` for scalars along the last axis."""
    slots = offset + jax.lax.broadcasted_iota(jnp.int32, (cached.shape[1], 1), 0)
    placed = product(fresh, (slots == places).astype(fresh.dtype), 1)
    return jnp.where(offset + jax.lax.broadcasted_iota(jnp.int32, cached.shape, 1) < 0, cached, placed)


def product(x: Float[Array, "n i"], y: Float[Array, "..."], axis: int) -> Float[Array, "n m"]:
    """Contracts the last axis of `x` with `axis` of `y` to float32, without rounding float32 operands."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x, y, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _exact(dtype: Any) -> Any:
    """Returns a dtype for products that represents `dtype` exactly: bfloat16 for integers up to 127."""
    return jnp.bfloat16 if jnp.dtype(dtype).itemsize == 1 else dtype


# Slots per tile: whole tiles of a TPU in float32, bfloat16 and int8.
TILE = 32
# The bytes of one buffer that a grid step writes.
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
    # A loop of one trip, unknown to the compiler: outside of loops, a donated buffer that only this kernel reads cannot
    # be pinned to main memory.
    once = lambda carry: (jnp.zeros((), jnp.bool_), _write(carry[1], fresh, start, interpret=False))  # noqa: E731
    with jax.named_scope("in_place"):
        return jax.lax.while_loop(lambda carry: carry[0], once, (start[0] >= 0, buffer))[1]


def _write(buffer: Array, fresh: Array, start: Array, *, interpret: bool) -> Array:
    layers, batch, heads, capacity, width = buffer.shape
    count, fresh = fresh.shape[3], fresh.astype(buffer.dtype)
    tiles = (count + 2 * (TILE - 1)) // TILE
    together = _divisor(layers, _MOST_BYTES // (heads * max(TILE, count) * width * buffer.dtype.itemsize))

    def touched(part: Any, row: Any, tile: Any, start: Any) -> tuple[Any, ...]:
        # Past the last touched tile, requests that tile again, so that nothing is read.
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
    offset = touched(part, row, tile, start)[3] * TILE - start[row]
    own = jax.lax.broadcasted_iota(jnp.int32, (1, fresh.shape[3]), 1)

    def put(layer, _):
        for head in range(fresh.shape[2]):
            cached = held[layer, 0, head]
            placed = place(own, offset, fresh[layer, 0, head], cached)
            slots = offset + jax.lax.broadcasted_iota(jnp.int32, (TILE, 1), 0)
            out[layer, 0, head] = jnp.where(slots < fresh.shape[3], placed, cached)

    jax.lax.fori_loop(0, fresh.shape[0], put, None)


def _divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number that is at most `most`, 1 at least."""
    return next(part for part in range(max(min(number, most), 1), 0, -1) if number % part == 0)
