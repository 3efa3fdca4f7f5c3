"""Checks and spreads the ids of processors: lists of tokens, one for all rows or one a row; -1 pads."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.values import is_concrete, to_int32

Ids: TypeAlias = Array | np.ndarray | Sequence[int] | Sequence[Sequence[int]]


def kept(ids: Any) -> Any:
    """Returns ids that were passed as a sequence as an array, so that they are one leaf; others as they are."""
    return np.asarray(ids, np.int64 if len(ids) == 0 else None) if isinstance(ids, list | tuple | range) else ids


def check(name: str, ids: Any, batch: int, vocab_size: int, *, axes: int = 1) -> None:
    """Raises unless these are integers of the vocabulary, with `axes` axes or one more for the rows."""
    shape, dtype = np.shape(ids), jnp.result_type(ids)
    if len(shape) not in (axes, axes + 1) or (len(shape) == axes + 1 and shape[0] != batch):
        raise ValueError(
            f"{name} must have {axes} axes, or {axes + 1} with one entry a row, got shape {shape} for {batch} rows"
        )
    if 0 not in shape and not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {dtype}; pass token ids")
    if is_concrete(ids):
        wrong = np.asarray(ids)[(np.asarray(ids) < -1) | (np.asarray(ids) >= vocab_size)]
        if wrong.size:
            raise ValueError(f"{name} has id {int(wrong[0])}, expected ids in [0, {vocab_size}); -1 pads")


def in_range(ids: Ids, vocab_size: int) -> Bool[Array, "b"]:
    """Returns the rows whose ids are all in the vocabulary, or padding."""
    ids = to_int32(ids)
    return jnp.all((ids >= -1) & (ids < vocab_size), axis=tuple(range(1, ids.ndim)))


def spread(ids: Ids, batch: int, *, axes: int = 1) -> Int[Array, "b *axes"]:
    """Returns ids row by row."""
    ids = to_int32(ids)
    return ids if ids.ndim == axes + 1 else jnp.broadcast_to(ids[None], (batch, *ids.shape))


def listed(ids: Ids, vocab_size: int) -> Bool[Array, "b v"]:
    """Returns which tokens are in each row's list.

    Example:
        >>> jaxspec.processors.ids.listed(jnp.asarray([[2, -1]]), 3).tolist()
        [[False, False, True]]
    """
    ids = to_int32(ids)
    rows = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    # -1 would count from the end.
    places = jnp.where(ids < 0, vocab_size, ids)
    return jnp.zeros((ids.shape[0], vocab_size), jnp.bool_).at[rows, places].set(True, mode="drop")
