"""Holds parameters as a checkpoint stores them, in blocks of a few bits, for the native CPU kernels."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.checkpoints.stored_groups import as_blocks
from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, reading
from jaxspec.families.base import Blocks, LazyTensor, ParamMapping
from jaxspec.ops.formats import BLOCK_FORMATS, FORMATS
from jaxspec.ops.joined import JoinedWeight
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.stored import NotFiniteError


def has_blocks(tensors: Mapping[str, LazyTensor]) -> bool:
    """Returns whether some tensor is stored in blocks that there are kernels for, or in integers that can be such."""
    return any(_blocks(tensor) is not None for tensor in tensors.values())


def hold(mapping: ParamMapping, tensors: Mapping[str, LazyTensor], source: str, dtype: DTypeLike) -> PackedWeight:
    """Returns the weight of a product as its tensors are stored.

    Args:
      mapping: of the weight.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: of the rows that are read from it.

    Raises:
      FileFormatError: a tensor is unreadable or not finite.
    """
    names = [name for name, _ in mapping.sources]
    with reading(source, f"tensor {' or '.join(names)}"):
        stored = {name: _blocks(tensors[name]) if mapping.by_rows else None for name in names}
    if len({blocks and blocks.name for blocks in stored.values()}) == 1:
        return _hold_alike(names, stored, mapping, tensors, source, dtype)
    parts = [_hold_alike([name], stored, mapping, tensors, source, dtype) for name in names]
    return JoinedWeight(tuple(parts), mapping.axis, jnp.dtype(dtype))


def _hold_alike(
    names: list[str],
    stored: Mapping[str, Blocks | None],
    mapping: ParamMapping,
    tensors: Mapping[str, LazyTensor],
    source: str,
    dtype: DTypeLike,
) -> PackedWeight:
    """Holds tensors of one format, or plain ones, as one weight."""
    several = [blocks for name in names if (blocks := stored[name]) is not None]
    if not several:
        return _native([read_finite(tensors, name, source) for name in names], mapping)
    rows, name, width = mapping.build(*(blocks.rows for blocks in several)), several[0].name, mapping.sources[0][1][-1]
    try:
        return BLOCK_FORMATS[name](rows, name, (*rows.shape[:-1], width), dtype)
    except NotFiniteError as error:
        raise _not_finite(source, " or ".join(names)) from error


def read_finite(tensors: Mapping[str, LazyTensor], name: str, source: str) -> np.ndarray:
    """Reads a tensor's values.

    Raises:
      FileFormatError: it is unreadable or not finite.
    """
    with reading(source, f"tensor {name}"):
        values = tensors[name].read()
    if not np.isfinite(values).all():
        raise _not_finite(source, name)
    return values


def _not_finite(source: str, name: str) -> FileFormatError:
    problem = "holds NaN or infinite values, so the file is corrupted"
    return FileFormatError(source, f"tensor {name}", problem, DOWNLOAD_AGAIN)


def _blocks(tensor: LazyTensor) -> Blocks | None:
    if tensor.blocks is None:
        grouped = tensor.grouped()
        return None if grouped is None else as_blocks(grouped)
    blocks = tensor.blocks()
    return blocks if blocks.name in BLOCK_FORMATS else None


def _native(parts: list[np.ndarray], mapping: ParamMapping) -> PackedWeight:
    """Holds what is stored as plain numbers, in bfloat16 where that has the same values."""
    values: Any = jnp.asarray(mapping.build(*parts), jnp.float32)
    exact = bool(jnp.all(values.astype(jnp.bfloat16).astype(jnp.float32) == values))
    return FORMATS["native"].pack(values, jnp.bfloat16 if exact else jnp.float32)
