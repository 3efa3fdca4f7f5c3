"""Holds parameters as quantized safetensors store them: integers, with scales and zeros for groups of inputs.

For XLA, as they are; for the native CPU kernels, as blocks of 32 inputs that say the same.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.core.files import reading
from jaxspec.families.base import Blocks, LazyTensor, ParamMapping
from jaxspec.families.grouped import Grouped, build_grouped
from jaxspec.ops.grouped import DTYPES, GroupedWeight

_INPUTS = 32  # of a block


def as_blocks(weight: Grouped) -> Blocks | None:
    """Returns a weight of integers as rows of blocks.

    Returns:
      The rows, of the same values; `None` where there is no such format: for groups that 32 does not divide, for scales
      that float16 has not, for int8 with zeros, and for floats of a byte.
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
) -> GroupedWeight | None:
    """Returns the weight of a product as its tensors are quantized.

    Args:
      mapping: of the weight.
      tensors: the tensors by name.
      source: where they are read from, for error messages.
      dtype: of the rows that are read from it.

    Returns:
      The weight, of the integers and scales of the file; `None` where the tensors are not quantized all alike, the
      groups lie scattered, or the numbers are floats of a byte.

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
    return GroupedWeight.of(values, found.scale, found.zero, dtype=dtype)
