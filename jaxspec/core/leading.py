"""Counts and selects along the second axis of `[b, n, ...]` arrays, row by row."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, Shaped

from jaxspec.core.typed import typed


@typed()
def count_leading(flags: Bool[Array, "b n"]) -> Int[Array, "b"]:
    """Counts the flags before the first `False`, such as the accepted drafts of a chain.

    Args:
      flags: `[b, n]` bool; `n` may be 0.

    Returns:
      `[b]` int32 counts, from 0 to `n`.

    Example:
        >>> jaxspec.core.count_leading(jnp.asarray([[True, True, False, True]])).tolist()
        [2]
    """
    return jnp.sum(jnp.cumprod(flags.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


@typed()
def first_true(flags: Bool[Array, "b n"]) -> Int[Array, "b"]:
    """Finds the index of the first `True` of each row, int32; 0 where there is none.

    Example:
        >>> jaxspec.core.first_true(jnp.asarray([[False, True, True]])).tolist()
        [1]
    """
    return jnp.argmax(flags, axis=1).astype(jnp.int32)


@typed()
def take_row(values: Shaped[Array, "b n *rest"], index: Int[Array, "b"]) -> Array:
    """Takes `values[b, index[b]]` of each row: `[b, n, ...]` to `[b, ...]`.

    Example:
        >>> jaxspec.core.take_row(jnp.asarray([[5, 6, 7], [8, 9, 10]]), jnp.asarray([2, 0])).tolist()
        [7, 8]
    """
    index = index.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, axis=1)[:, 0]
