"""Reads values that callers pass: whether the host can, and as int32 that never wraps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Int

LARGEST = 2**31 - 1
# The largest float32 that int32 holds.
_LARGEST_FLOAT = float(2**31 - 128)


def is_concrete(*values: object) -> bool:
    """Returns whether the host can read the values: none is traced, or has parts that other processes hold."""
    return not any(_is_unreadable(leaf) for value in values for leaf in jax.tree.leaves(value))


def _is_unreadable(leaf: object) -> bool:
    if isinstance(leaf, Tracer):
        return True
    return isinstance(leaf, Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def to_int32(value: Any) -> Int[Array, "..."]:
    """Converts whole numbers to int32; one out of its range is clipped instead of wrapped, so that it stays invalid.

    Example:
        >>> from jaxspec.core.values import to_int32
        >>> to_int32([7, 2**32 + 1, 10**30]).tolist()
        [7, 2147483647, 2147483647]
    """
    array = value
    if not hasattr(value, "dtype"):
        array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
    if array.dtype == object:  # beyond int64
        array = np.asarray(array.clip(-LARGEST, LARGEST), np.int64)
    elif jnp.issubdtype(array.dtype, jnp.floating):
        array = array.clip(-_LARGEST_FLOAT, _LARGEST_FLOAT)
    elif array.dtype.itemsize > 4:
        array = array.clip(None if jnp.issubdtype(array.dtype, jnp.unsignedinteger) else -LARGEST, LARGEST)
    return jnp.asarray(array, jnp.int32)
