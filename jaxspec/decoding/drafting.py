"""Checks what a call says of drafting: the most drafts of each row, and what its answer is expected to be."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.values import is_concrete, to_int32
from jaxspec.decoding.room import bucket
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.lookup import LookupDrafter

# How much of a prompt's end stands before a prediction, so that the first drafts are found there.
_END = 8


def check_drafting(
    max_drafts: Any, prediction: Any, drafter: Drafter, batch: int, vocab_size: int
) -> tuple[Int[Array, "b"] | None, Int[Array, "b p"] | None]:
    """Returns the most drafts of each row, and its predicted answer with -1 behind it; `None` is what is not given.

    Raises:
      ValueError: for what does not fit the rows, the vocabulary or the drafter.
    """
    return _max_drafts(max_drafts, drafter, batch), _prediction(prediction, drafter, batch, vocab_size)


def _max_drafts(value: Any, drafter: Drafter, batch: int) -> Int[Array, "b"] | None:
    if value is None:
        return None
    _needs_drafter("max_drafts", drafter)
    shape, dtype = validate.shape_and_dtype("max_drafts", value)
    if shape not in ((), (batch,)):
        raise ValueError(f"max_drafts must be one integer or one a row, got shape {shape} for {batch} rows")
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"max_drafts must be an integer of at least 0, got dtype {dtype}; None is no limit")
    if is_concrete(value) and np.min(value) < 0:
        raise ValueError(f"max_drafts must be at least 0, got {np.asarray(value).tolist()}; 0 is plain decoding")
    return jnp.broadcast_to(to_int32(value), (batch,))


def _prediction(value: Any, drafter: Drafter, batch: int, vocab_size: int) -> Int[Array, "b p"] | None:
    if value is None:
        return None
    _needs_drafter("prediction", drafter)
    if not isinstance(drafter, LookupDrafter) and drafter.lookup_part is None:
        name = type(drafter).__name__
        raise ValueError(
            f"a prediction is copied from, which {name} does not do; pass NGramDrafter(), SuffixDrafter(), or "
            f"HybridDrafter(NGramDrafter(), {name}(...)), or leave prediction out"
        )
    shape, dtype = validate.shape_and_dtype("prediction", value)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != batch):
        raise ValueError(f"prediction must be [p] or [batch, p], got shape {shape} for {batch} rows")
    array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
    if array.size and not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"prediction must be token ids, got dtype {dtype}; text goes to SpeculativeDecoder")
    if is_concrete(value) and array.size and (array.min() < -1 or array.max() >= vocab_size):
        raise ValueError(f"prediction must be in [0, {vocab_size}), or -1 for padding, got {array.tolist()!r:.80}")
    width = shape[-1]
    wide = jnp.broadcast_to(to_int32(array.reshape(-1, width) if width else np.zeros((1, 0), np.int32)), (batch, width))
    return jnp.pad(wide, ((0, 0), (0, bucket(width) - width)), constant_values=-1)


def behind_the_prompt(
    prediction: Int[Array, "b p"] | None, prompt: Int[Array, "b t"], length: Int[Array, "b"]
) -> Int[Array, "b p2"] | None:
    """Returns predictions as `Context.predicted` has them: behind the ends of the prompts, and not joined to more."""
    if prediction is None:
        return None
    at = length[:, None] - _END + jnp.arange(_END, dtype=jnp.int32)[None]
    end = jnp.where(at >= 0, jnp.take_along_axis(prompt, jnp.maximum(at, 0), axis=1), -1)
    return jnp.pad(jnp.concatenate([end, prediction], axis=1), ((0, 0), (0, 1)), constant_values=-1)


def _needs_drafter(name: str, drafter: Drafter) -> None:
    if isinstance(drafter, NoDrafter):
        raise ValueError(f"{name} says what is drafted, and there is no drafter; pass one, or leave {name} out")
