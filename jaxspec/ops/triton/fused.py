"""Fuses operations that XLA keeps separate on a GPU: sum and norm of one row; rotation of queries and keys."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float

from jaxspec.ops.rope import RopeTable

# The numbers that a program holds in registers.
_WIDEST = 16384


def fits(x: Float[Array, "*rows d"]) -> bool:
    """Returns whether the kernel supports these rows: a single one of at most 16,384 numbers."""
    return math.prod(x.shape[:-1]) == 1 and x.shape[-1] <= _WIDEST


def rms_norm(
    scale: Float[Array, "d"], *terms: Float[Array, "*ones d"], eps: float, interpret: bool = False
) -> tuple[Float[Array, "*ones d"], Float[Array, "*ones d"]]:
    """Sums rows, and applies RMS norm to the sum in float32.

    Args:
      scale: the factor of each number.
      terms: one or two rows to sum.
      eps: added to the mean square.
      interpret: whether to run as ordinary operations, on any platform.

    Returns:
      The sum of the terms, and the normalized sum.
    """
    first = terms[0]
    one = jax.ShapeDtypeStruct(scale.shape, first.dtype)
    found = pl.pallas_call(
        functools.partial(_norm_kernel, terms=len(terms), eps=eps),
        out_shape=(one,) * len(terms),
        grid=(1,),
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="norm",
    )(scale, *(x.reshape(-1) for x in terms))
    total, normalized = found if len(terms) > 1 else (first, found[0])
    return total.reshape(first.shape), normalized.reshape(first.shape)


def _norm_kernel(scale: Any, *refs: Any, terms: int, eps: float) -> None:
    width = scale.shape[0]
    index = jnp.arange(pl.next_power_of_2(width), dtype=jnp.int32)
    there = index < width
    own, *wide = (triton.load(one.at[index], mask=there, other=0).astype(jnp.float32) for one in (scale, *refs[:terms]))
    out = refs[-1]
    total = wide[0]
    if terms > 1:
        # Rounded as stored: the norm is computed from the values that the next layers read.
        stored = (wide[0] + wide[1]).astype(out.dtype)
        triton.store(refs[-2].at[index], stored, mask=there)
        total = stored.astype(jnp.float32)
    shrunk = total * jax.lax.rsqrt(jnp.sum(total * total, axis=0) / width + eps)
    triton.store(out.at[index], (shrunk * own).astype(out.dtype), mask=there)


def rotate(
    queries: Float[Array, "b t g r d"], both: Float[Array, "b t g 2 d"], table: RopeTable, *, interpret: bool = False
) -> tuple[Float[Array, "b t g r d"], Float[Array, "b t g d"], Float[Array, "b t g d"]]:
    """Rotates queries and keys like `jaxspec.ops.rope.rotate`, and splits off the values.

    Args:
      queries: the queries, `r` heads per key-value head, whose size is a power of two.
      both: the keys and values.
      table: the cosines and sines of the positions.
      interpret: whether to run as ordinary operations, on any platform.
    """
    batch, time, heads, group, width = queries.shape
    one = jax.ShapeDtypeStruct((batch, time, heads, width), both.dtype)
    return pl.pallas_call(
        functools.partial(_rotate_kernel, time=time, group=group, members=pl.next_power_of_2(group)),
        out_shape=(jax.ShapeDtypeStruct(queries.shape, queries.dtype), one, one),
        grid=(batch * time, heads),
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="rotate",
    )(queries, both, *table)


def _rotate_kernel(queries: Any, both: Any, cos: Any, sin: Any, *out: Any, time: int, group: int, members: int) -> None:
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
