"""Holds parameters as a checkpoint stores them, in blocks of a few bits, for the native CPU kernels."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, reading
from jaxspec.families.base import Blocks, LazyTensor, ParamMapping
from jaxspec.nn.convert import is_product
from jaxspec.ops.joined import JoinedWeight
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.stored import BLOCKS, NotFiniteError, StoredWeight


def has_blocks(tensors: Mapping[str, LazyTensor]) -> bool:
    """Returns whether some tensor is stored in a format that there are kernels for."""
    return any(_blocks(tensor) is not None for tensor in tensors.values())


def hold(
    mapping: ParamMapping, tensors: Mapping[str, LazyTensor], source: str, dtype: DTypeLike
) -> PackedWeight | None:
    """Returns a parameter as its tensors are stored; `None` is for one that no product reads.

    Args:
      mapping: of the parameter.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: of the rows that are read from it.

    Raises:
      FileFormatError: a tensor is unreadable or not finite.
    """
    if mapping.is_norm or not is_product(mapping.path[-1]):
        return None
    stored = [_blocks(tensors[name]) if mapping.by_rows else None for name, _ in mapping.sources]
    if stored.count(None) == len(stored):
        return _native([read_finite(tensors, name, source) for name, _ in mapping.sources], mapping)
    first = stored[0]
    if first is not None and all(blocks is not None and blocks.name == first.name for blocks in stored):
        return _stored([blocks for blocks in stored if blocks], mapping, source, dtype)
    parts = [
        _native([read_finite(tensors, name, source)], mapping)
        if blocks is None
        else _stored([blocks], mapping, source, dtype)
        for (name, _), blocks in zip(mapping.sources, stored, strict=True)
    ]
    return JoinedWeight(tuple(parts), mapping.axis)


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
        return None
    blocks = tensor.blocks()
    return blocks if blocks.name in BLOCKS else None


def _stored(several: list[Blocks], mapping: ParamMapping, source: str, dtype: DTypeLike) -> StoredWeight:
    rows = mapping.build(*(blocks.rows for blocks in several))
    name, width = several[0].name, mapping.sources[0][1][-1]
    try:
        return StoredWeight.of(rows, name, (*rows.shape[:-1], width), dtype)
    except NotFiniteError as error:
        raise _not_finite(source, " or ".join(name for name, _ in mapping.sources)) from error


def _native(parts: list[np.ndarray], mapping: ParamMapping) -> NativeWeight:
    """Holds what is stored as plain numbers, in bfloat16 where that has the same values."""
    values: Any = jnp.asarray(mapping.build(*parts), jnp.float32)
    exact = bool(jnp.all(values.astype(jnp.bfloat16).astype(jnp.float32) == values))
    return NativeWeight.pack(values, jnp.bfloat16 if exact else jnp.float32)
