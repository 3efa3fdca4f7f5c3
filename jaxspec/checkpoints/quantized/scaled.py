"""Reads weights that are stored with a number a byte, int8 or float8, beside their scales.

`weight` is `[out, in]`. Its scales are one for all, one for each output, one for each output and group of inputs, or
one for each block of outputs and inputs; they multiply it, in spite of the name "inverse" that some checkpoints give
them.
"""

from collections.abc import Sequence

import numpy as np

from jaxspec.checkpoints.quantized.module import SCALES, Module, grouped_tensor, runs, without_zeros
from jaxspec.families.base import LazyTensor
from jaxspec.families.grouped import Grouped

Block = tuple[int, int]
FLOATS = ("F8_E4M3", "F8_E5M2")


def read_scaled(
    module: Module, scales: str, dtypes: tuple[str, ...], blocks: Sequence[Block], zeros: str = ""
) -> LazyTensor:
    """Returns a weight of a number a byte.

    Args:
      module: its tensors.
      scales: the last part of the name of its scales.
      dtypes: what it may be stored in.
      blocks: the sizes that blocks of outputs and inputs may have.
      zeros: the last part of the name of its zeros, if it may have some.

    Raises:
      FileFormatError: a tensor is missing, or of another type or shape.
    """
    outputs, inputs = shape = module.find("weight", dtypes, (None, None)).shape
    found = module.find(scales, SCALES).shape
    block = _block_of(module, scales, (outputs, inputs), found, blocks)
    has_zeros = zeros in module
    if has_zeros:
        module.find(zeros, ("I8",), found)

    def read() -> tuple[Grouped, np.ndarray | None]:
        values = module.read("weight")
        if not np.isfinite(values).all():
            raise module.error("weight", "holds NaN or infinite values, so the file is corrupted")
        scale = _spread(module.read_scale(scales), outputs, block)
        zero = without_zeros(_spread(module.read(zeros), outputs, block)) if has_zeros else None
        size = block[1] or inputs // scale.shape[1]
        groups = None if inputs == size * scale.shape[1] else runs(inputs, size)
        return Grouped(values, scale, zero, 8), groups

    return grouped_tensor(shape, read)


def _block_of(module: Module, scales: str, shape: Block, found: tuple[int, ...], blocks: Sequence[Block]) -> Block:
    """Returns how many outputs share a scale, and how many inputs; 0 for as many groups as there are scales."""
    outputs, inputs = shape
    if np.prod(found) == 1:
        return outputs, inputs
    for rows, columns in blocks:
        if found == (-(-outputs // rows), -(-inputs // columns)):
            return rows, columns
    if found == (outputs,) or (len(found) == 2 and found[0] == outputs and found[1] and inputs % found[1] == 0):
        return 1, 0
    of_blocks = "".join(f", or one for each block of {rows} x {columns}" for rows, columns in blocks)
    expected = f"one number, one for each of {outputs} outputs and each of equal groups of {inputs} inputs{of_blocks}"
    raise module.error(scales, f"expected {expected}; got the shape {found}")


def _spread(x: np.ndarray, outputs: int, block: Block) -> np.ndarray:
    """Returns scales or zeros `[out, groups]`."""
    x = x.reshape(1, 1) if x.size == 1 else x.reshape(len(x), -1)
    return np.repeat(x, block[0], axis=0)[:outputs]
