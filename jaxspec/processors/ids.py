"""Checks and broadcasts the arguments of processors: lists of ids and values, shared or one per row."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.validate import is_concrete, to_int32

Ids: TypeAlias = Array | np.ndarray | Sequence[int] | Sequence[Sequence[int]]


def kept(values: Any, dtype: type | None = None) -> Any:
    """Converts a sequence of numbers to an array, so that it is a single leaf.

    Returns other values unchanged, and those that are not numbers: `check` names them.

    Args:
      values: the sequence.
      dtype: the dtype of the array; `None` is that of the values, of none int64.
    """
    if not isinstance(values, list | tuple | range):
        return values
    try:
        array = np.asarray(values, np.int64 if dtype is None and len(values) == 0 else None)
    except (ValueError, OverflowError):
        return values
    with np.errstate(over="ignore"):  # a bias beyond float32 becomes infinite, which is an error
        return array.astype(dtype or array.dtype) if array.dtype.kind in "iuf" else values


def is_id(value: Any) -> bool:
    """Returns whether a value is an integer that a token may have."""
    known = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return known and 0 <= int(value) <= validate.LARGEST


def check(name: str, ids: Any, batch: int, vocab_size: int, *, axes: int = 1) -> None:
    """Raises an error unless `ids` are integers in the vocabulary with `axes` axes, or one more for the rows."""
    ids = validate.numbers(name, ids, "integers", whole=True, advice="pass token ids")
    shape = ids.shape
    if len(shape) not in (axes, axes + 1) or (len(shape) == axes + 1 and shape[0] != batch):
        raise ValueError(
            f"{name} must have {axes} axes, or {axes + 1} with one entry per row, got shape {shape} for {batch} rows"
        )
    if is_concrete(ids):
        wrong = np.asarray(ids)[(np.asarray(ids) < -1) | (np.asarray(ids) >= vocab_size)]
        if wrong.size:
            raise ValueError(f"{name} has id {int(wrong[0])}, expected ids in [0, {vocab_size}); -1 pads")


def in_range(ids: Ids, vocab_size: int) -> Bool[Array, "b"]:
    """Returns the mask of rows whose ids are all in the vocabulary or padding."""
    ids = to_int32(ids)
    return jnp.all((ids >= -1) & (ids < vocab_size), axis=tuple(range(1, ids.ndim)))


def spread(ids: Ids, batch: int, *, axes: int = 1) -> Int[Array, "b *axes"]:
    """Broadcasts ids to one list per row."""
    ids = to_int32(ids)
    return ids if ids.ndim == axes + 1 else jnp.broadcast_to(ids[None], (batch, *ids.shape))


def listed(ids: Ids, vocab_size: int) -> Bool[Array, "b v"]:
    """Returns the mask of the tokens in each row's list.

    Example:
        >>> jaxspec.processors.ids.listed(jnp.asarray([[2, -1]]), 3).tolist()
        [[False, False, True]]
    """
    ids = to_int32(ids)
    rows = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    # As an index, -1 would be the last token.
    places = jnp.where(ids < 0, vocab_size, ids)
    return jnp.zeros((ids.shape[0], vocab_size), jnp.bool_).at[rows, places].set(True, mode="drop")


def check_values(
    name: str, value: Any, batch: int, low: float | int, high: float | int, expected: str, *, whole: bool = False
) -> None:
    """Raises an error unless `value` is one number or one per row, from `low` to `high` and finite."""
    value = validate.numbers(name, value, expected, whole=whole, advice="pass a number, or one per row")
    if value.shape not in ((), (batch,)):
        raise ValueError(f"{name} must be one value or one per row, got shape {value.shape} for {batch} rows")
    if is_concrete(value):
        values = np.asarray(value, np.float64)
        if not np.all((values >= low) & (values <= high) & (values > -math.inf) & (values < math.inf)):
            raise ValueError(f"{name} must be {expected}, got {np.asarray(value).tolist()}")


def spread_values(value: Any, batch: int) -> Float[Array, "b"]:
    """Broadcasts a value to float32 `[b]`."""
    return jnp.broadcast_to(jnp.asarray(value, jnp.float32), (batch,))


def meet(value: Any, logits: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """Reshapes per-row values to broadcast against logits, in the dtype of the logits."""
    return jnp.asarray(value).reshape(-1, *(1,) * (logits.ndim - 1)).astype(logits.dtype)
