"""Multiplies a few rows by integers with one scale per output and group: one GPU kernel that reads them once.

Each program multiplies some outputs by every `splits`-th piece of their groups, and scales and adds the results in
registers; the splits are added after the kernel. XLA writes the sums of every group to memory first: for five rows and
int4 groups of 128, two thirds of the weight's size.

    4 groups of 256 inputs in pieces of 128, 2 splits
    split 0      0.0   1.0   2.0   3.0      group.piece
    split 1      0.1   1.1   2.1   3.1
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float, Int

from jaxspec.ops.triton.attention import multiply

# Outputs per program, the first that divides the weight's; inputs read at once.
_OUTPUTS, _PIECES = (64, 32, 16), (128, 64, 32, 16)
# Rows per program: fewer are padded, since its products take sixteen.
_LEAST_ROWS, _MOST_ROWS = 16, 64
# Programs that fill a large GPU: each partial result is written and read again.
_PROGRAMS = 256


def fits(values: Int[Array, "groups out group"]) -> bool:
    """Returns whether the kernel supports a weight of this shape: outputs and a group's inputs are multiples of 16.

    It would read more than 2^31 integers at wrong places (`attention.addresses`).
    """
    return values.shape[1] % _OUTPUTS[-1] == 0 and values.shape[2] % _PIECES[-1] == 0 and values.size <= 2**31


@functools.partial(jax.jit, static_argnames="interpret", inline=True)
def product(
    x: Float[Array, "rows in"],
    values: Int[Array, "groups out group"],
    scale: Float[Array, "groups out"],
    zero: Int[Array, "groups out"] | None,
    *,
    interpret: bool = False,
) -> Float[Array, "rows out"]:
    """Returns the sum over groups of `scale * (x @ (values - zero))`, float32.

    Args:
      x: the rows of activations.
      values: the integers, int8 or int4.
      scale: one scale per output and group, any float dtype.
      zero: the integers that represent 0; `None` is 0.
      interpret: whether to run as ordinary operations, on any platform.
    """
    rows, (groups, out, group) = x.shape[0], values.shape
    piece = next(size for size in _PIECES if group % size == 0)
    outputs = _outputs(out)
    tile = min(max(pl.next_power_of_2(rows), _LEAST_ROWS), _MOST_ROWS)
    tiles, pieces = -(-rows // tile), group // piece
    splits = _splits(tiles * (out // outputs), groups * pieces)
    partial = pl.pallas_call(
        functools.partial(_kernel, tile=tile, outputs=outputs, splits=splits, shifted=zero is not None),
        out_shape=jax.ShapeDtypeStruct((splits, rows, out), jnp.float32),
        # Tiles of rows first: adjacent programs read the same weights.
        grid=(tiles, out // outputs, splits),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=4),
        interpret=interpret,
        name="grouped_product",
    )(
        x.reshape(rows, groups, pieces, piece),
        values.reshape(groups, out, pieces, piece),
        scale,
        *([] if zero is None else [zero]),
    )
    return jnp.sum(partial, axis=0)


def _outputs(out: int) -> int:
    """Returns the number of outputs per program: the most that leave enough programs, if any do."""
    fitting = [size for size in _OUTPUTS if out % size == 0]
    return next((size for size in fitting if out // size >= _PROGRAMS), min(fitting, key=lambda size: abs(size - 32)))


def _splits(programs: int, pieces: int) -> int:
    """Returns the number of programs that share the pieces of a weight: a power of two that fills the card."""
    return min(pl.next_power_of_2(max(_PROGRAMS // programs, 1)), pl.next_power_of_2(pieces))


def _kernel(x: Any, values: Any, scale: Any, *refs: Any, tile: int, outputs: int, splits: int, shifted: bool) -> None:
    zero, found = refs if shifted else (None, *refs)
    count, groups, pieces, piece = x.shape
    row = pl.program_id(0) * tile + jnp.arange(tile, dtype=jnp.int32)
    there = row < count
    own, split = pl.ds(pl.program_id(1) * outputs, outputs), pl.program_id(2)
    across = jnp.arange(piece, dtype=jnp.int32)[None]

    def add(index, total):
        number = index * splits + split
        group, inside = jax.lax.div(number, jnp.int32(pieces)), jax.lax.rem(number, jnp.int32(pieces))
        block = triton.load(x.at[row[:, None], group, inside, across], mask=there[:, None], other=0)
        weight = values[group, own, inside, slice(None)]
        sums = multiply(block, weight.astype(block.dtype).T)
        if zero is not None:
            # After the product: the difference of two int8 integers has more bits than bfloat16.
            totals = jnp.sum(block.astype(jnp.float32), axis=1)
            sums = sums - totals[:, None] * zero[group, own].astype(jnp.float32)[None]
        return total + sums * scale[group, own].astype(jnp.float32)[None]

    left = jnp.maximum(groups * pieces - split + (splits - 1), 0)
    total = jax.lax.fori_loop(
        jnp.int32(0), jax.lax.div(left, jnp.int32(splits)), add, jnp.zeros((tile, outputs), jnp.float32)
    )
    output = pl.program_id(1) * outputs + jnp.arange(outputs, dtype=jnp.int32)
    triton.store(found.at[split, row[:, None], output[None]], total, mask=there[:, None])
