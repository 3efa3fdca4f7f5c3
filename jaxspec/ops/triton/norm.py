"""Normalizes one row: one GPU kernel where XLA has two, as it fuses a sum and what follows for more rows alone."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float

# Numbers that a program holds in registers.
_WIDEST = 16384


def fits(x: Float[Array, "*rows d"]) -> bool:
    """Returns whether the kernel takes these rows: one, of 16,384 numbers at most."""
    return math.prod(x.shape[:-1]) == 1 and x.shape[-1] <= _WIDEST


def rms_norm(
    scale: Float[Array, "d"], *terms: Float[Array, "*ones d"], eps: float, interpret: bool = False
) -> tuple[Float[Array, "*ones d"], Float[Array, "*ones d"]]:
    """Adds up rows, and divides the sum by the root of its mean square, in float32, and scales it.

    Args:
      scale: one for each number.
      terms: one or two rows.
      eps: added to the mean square.
      interpret: run as ordinary operations, on any platform.

    Returns:
      The sum of the terms, and its norm.
    """
    first = terms[0]
    one = jax.ShapeDtypeStruct(scale.shape, first.dtype)
    found = pl.pallas_call(
        functools.partial(_kernel, terms=len(terms), eps=eps),
        out_shape=(one,) * len(terms),
        grid=(1,),
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="norm",
    )(scale, *(x.reshape(-1) for x in terms))
    total, normalized = found if len(terms) > 1 else (first, found[0])
    return total.reshape(first.shape), normalized.reshape(first.shape)


def _kernel(scale: Any, *refs: Any, terms: int, eps: float) -> None:
    width = scale.shape[0]
    index = jnp.arange(pl.next_power_of_2(width), dtype=jnp.int32)
    there = index < width
    own, *wide = (triton.load(one.at[index], mask=there, other=0).astype(jnp.float32) for one in (scale, *refs[:terms]))
    out = refs[-1]
    total = wide[0]
    if terms > 1:
        # As it is stored: the norm is of what the next layers read.
        stored = (wide[0] + wide[1]).astype(out.dtype)
        triton.store(refs[-2].at[index], stored, mask=there)
        total = stored.astype(jnp.float32)
    shrunk = total * jax.lax.rsqrt(jnp.sum(total * total, axis=0) / width + eps)
    triton.store(out.at[index], (shrunk * own).astype(out.dtype), mask=there)
