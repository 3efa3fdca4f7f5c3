"""Rotates queries and keys by their positions, and takes the values beside them: one GPU kernel where XLA has three."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float

from jaxspec.ops.rope import RopeTable


def rotate(
    queries: Float[Array, "b t g r d"], both: Float[Array, "b t g 2 d"], table: RopeTable, *, interpret: bool = False
) -> tuple[Float[Array, "b t g r d"], Float[Array, "b t g d"], Float[Array, "b t g d"]]:
    """Returns rotated queries and keys, and values, as `jaxspec.ops.rope.rotate` computes them.

    Args:
      queries: `r` heads for each key-value head, of a size that is a power of two.
      both: keys and values.
      table: of the positions.
      interpret: run as ordinary operations, on any platform.
    """
    batch, time, heads, group, width = queries.shape
    one = jax.ShapeDtypeStruct((batch, time, heads, width), both.dtype)
    return pl.pallas_call(
        functools.partial(_kernel, time=time, group=group, members=pl.next_power_of_2(group)),
        out_shape=(jax.ShapeDtypeStruct(queries.shape, queries.dtype), one, one),
        grid=(batch * time, heads),
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="rotate",
    )(queries, both, *table)


def _kernel(queries: Any, both: Any, cos: Any, sin: Any, *out: Any, time: int, group: int, members: int) -> None:
    """Rotates the heads of one token that share a key-value head."""
    row, token = jax.lax.div(pl.program_id(0), jnp.int32(time)), jax.lax.rem(pl.program_id(0), jnp.int32(time))
    at, half = (row, token, pl.program_id(1)), queries.shape[-1] // 2
    member, across = jnp.arange(members, dtype=jnp.int32)[:, None], jnp.arange(half, dtype=jnp.int32)[None]
    turns = cos[row, token, :][None], sin[row, token, :][None]
    there = jnp.broadcast_to(member < group, (members, half))
    asked = [triton.load(queries.at[(*at, member, across + start)], mask=there, other=0) for start in (0, half)]
    for start, turned in zip((0, half), _turned(asked[0], asked[1], *turns), strict=True):
        triton.store(out[0].at[(*at, member, across + start)], turned.astype(out[0].dtype), mask=there)
    keys = [both[(*at, 0, pl.ds(start, half))][None] for start in (0, half)]
    for start, turned in zip((0, half), _turned(keys[0], keys[1], *turns), strict=True):
        out[1][(*at, pl.ds(start, half))] = turned[0].astype(out[1].dtype)
    out[2][(*at, slice(None))] = both[(*at, 1, slice(None))]


def _turned(first: Array, second: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    return first * cos - second * sin, second * cos + first * sin
