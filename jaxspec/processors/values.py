"""Checks and spreads the values of processors: a number for all rows, or one a row."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxspec.core.values import is_concrete


def check(name: str, value: Any, batch: int, low: float | int, high: float | int, expected: str) -> None:
    """Raises unless a value is one number or one a row, above `low` and at most `high`."""
    shape = np.shape(value)
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    if isinstance(value, bool) or not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
        raise TypeError(f"{name} must be {expected}, got {value!r}; pass a number, or one a row")
    if shape not in ((), (batch,)):
        raise ValueError(f"{name} must be one value or one a row, got shape {shape} for {batch} rows")
    if is_concrete(value):
        values = np.asarray(value, np.float64)
        if not np.all((values >= low) & (values <= high) & (values > -math.inf) & (values < math.inf)):
            raise ValueError(f"{name} must be {expected}, got {np.asarray(value).tolist()}")


def spread(value: Any, batch: int) -> Float[Array, "b"]:
    """Returns a value row by row, float32."""
    return jnp.broadcast_to(jnp.asarray(value, jnp.float32), (batch,))


def meet(value: Any, logits: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """Shapes a row's value to meet logits, in their dtype."""
    return jnp.asarray(value).reshape(-1, *(1,) * (logits.ndim - 1)).astype(logits.dtype)
