"""Holds parameters as a checkpoint stores them: low-bit blocks, or grouped integers with scales and zeros.

XLA multiplies by the integers directly; for the native CPU kernels, they become blocks of 32 inputs with equal values.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.families.base import Blocks, Grouped, LazyTensor, ParamMapping, build_grouped
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, reading
from jaxspec.ops.formats import BLOCK_FORMATS, FORMATS, GROUPED_FORMAT
from jaxspec.ops.grouped import DTYPES
from jaxspec.ops.packed import JoinedWeight, PackedWeight
from jaxspec.ops.stored import NotFiniteError


def has_blocks(tensors: Mapping[str, LazyTensor]) -> bool:
    """Returns whether any tensor is stored in blocks that have kernels, or in integers that convert to such blocks."""
    return any(_blocks(tensor) is not None for tensor in tensors.values())


def hold(mapping: ParamMapping, tensors: Mapping[str, LazyTensor], source: str, dtype: DTypeLike) -> PackedWeight:
    """Returns the weight of a matrix product in its stored format.

    Args:
      mapping: the mapping of the weight.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: the dtype of rows that are read from the weight.

    Raises:
      FileFormatError: a tensor is unreadable or not finite.
    """
    names = [name for name, _ in mapping.sources]
    with reading(source, f"tensor {' or '.join(names)}"):
        stored = {name: _blocks(tensors[name]) if mapping.by_rows else None for name in names}
    if len({blocks and blocks.name for blocks in stored.values()}) == 1:
        return _hold_alike(names, stored, mapping, tensors, source, dtype)
    if not mapping.joins:
        return _native([read_finite(tensors, name, source, jnp.float32) for name in names], mapping)
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
    """Holds tensors of one block format, or plain tensors, as one weight."""
    several = [blocks for name in names if (blocks := stored[name]) is not None]
    if not several:
        return _native([read_finite(tensors, name, source, jnp.float32) for name in names], mapping)
    rows, name, width = mapping.build(*(blocks.rows for blocks in several)), several[0].name, mapping.sources[0][1][-1]
    try:
        return BLOCK_FORMATS[name](rows, name, (*rows.shape[:-1], width), dtype)
    except NotFiniteError as error:
        raise _not_finite(source, " or ".join(names)) from error


def read_finite(tensors: Mapping[str, LazyTensor], name: str, source: str, dtype: DTypeLike) -> np.ndarray:
    """Reads a tensor's values, which another dtype is to hold.

    Raises:
      FileFormatError: it is unreadable, not finite, or holds values that are infinite in that dtype.
    """
    with reading(source, f"tensor {name}"):
        values = tensors[name].read()
    if not np.isfinite(values).all():
        raise _not_finite(source, name)
    limit = float(jnp.finfo(dtype).max)
    if values.size and float(jnp.finfo(values.dtype).max) > limit and (largest := float(np.abs(values).max())) > limit:
        problem = f"holds {largest:.3g}, and {jnp.dtype(dtype).name} ends at {limit:.3g}"
        wider = largest <= float(jnp.finfo(jnp.float32).max)
        raise FileFormatError(source, f"tensor {name}", problem, 'pass dtype="float32"' if wider else DOWNLOAD_AGAIN)
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
    """Holds plain tensors as one weight, in bfloat16 if that is exact."""
    values: Any = jnp.asarray(mapping.build(*parts), jnp.float32)
    exact = bool(jnp.all(values.astype(jnp.bfloat16).astype(jnp.float32) == values))
    return FORMATS["native"].pack(values, jnp.bfloat16 if exact else jnp.float32)


_INPUTS = 32  # per block


def as_blocks(weight: Grouped) -> Blocks | None:
    """Converts an integer weight to rows of blocks.

    Returns:
      The rows, with equal values; `None` if no block format can hold them: for group sizes that 32 does not divide,
      scales that float16 cannot represent, int8 with zeros, and one-byte floats.
    """
    width, groups = weight.values.shape[-1], weight.scale.shape[-1]
    scale = weight.scale.astype(np.float16)
    exact = np.array_equal(scale.astype(np.float32), weight.scale.astype(np.float32))
    if width // groups % _INPUTS or not exact or weight.values.dtype != np.int8:
        return None
    blocks = weight.values.reshape(*weight.values.shape[:-1], -1, _INPUTS)
    spread = lambda x: np.repeat(x, width // groups // _INPUTS, axis=-1)[..., None]  # noqa: E731
    parts = [spread(scale).view(np.uint8)]
    if weight.bits == 4:
        codes = (blocks + 8).astype(np.uint8)
        zero = np.zeros(weight.scale.shape, np.int8) if weight.zero is None else weight.zero
        parts += [spread((zero + 8).astype(np.uint8)), codes[..., :16] | codes[..., 16:] << 4]
    elif weight.zero is None:
        parts.append(blocks.view(np.uint8))
    else:
        return None
    rows = np.concatenate(parts, axis=-1)
    return Blocks("INT4" if weight.bits == 4 else "Q8_0", rows.reshape(*rows.shape[:-2], -1))


def hold_groups(
    mapping: ParamMapping, tensors: Mapping[str, LazyTensor], source: str, dtype: DTypeLike
) -> PackedWeight | None:
    """Returns the quantized weight of a matrix product.

    Args:
      mapping: the mapping of the weight.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: the dtype of rows that are read from the weight.

    Returns:
      The weight, with the integers and scales of the file; `None` if its tensors are quantized differently, groups are
      not contiguous, or values are one-byte floats.

    Raises:
      FileFormatError: a tensor is unreadable or not finite.
    """
    parts = []
    for name, _ in mapping.sources:
        with reading(source, f"tensor {name}"):
            part = tensors[name].grouped()
        if part is None or part.values.dtype not in DTYPES:
            return None
        parts.append(part)
    found = build_grouped(mapping.build, parts)
    if found is None:
        return None
    values = found.values if found.bits == 8 else found.values.astype(jnp.int4)
    return GROUPED_FORMAT.of(values, found.scale, found.zero, dtype=dtype)
