"""Reads float8 weights as written by transformers ("fp8", in blocks), vLLM ("fp8", one scale per weight) and FBGEMM.

`weight`, int8 or float8, is `[out, in]`. There is one scale in all, one per output, one per output and group of inputs,
or one per block of outputs and inputs. Scales multiply the weight, although some checkpoints call them "inverse".
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.checkpoints.quantized.module import SCALES, Layout, Module, grouped_tensor, runs, without_zeros
from jaxspec.families.base import Grouped, LazyTensor
from jaxspec.families.settings import SIZE, Setting

Block = tuple[int, int]
FLOATS = ("F8_E4M3", "F8_E5M2")
BLOCK_SIZES = Setting(
    "two sizes", lambda x: isinstance(x, list) and len(x) == 2 and all(SIZE.accepts(size) for size in x)
).or_null()
SETTINGS = {"weight_block_size": BLOCK_SIZES}


def read_scaled(
    module: Module, scales: str, dtypes: tuple[str, ...], blocks: Sequence[Block], zeros: str = ""
) -> LazyTensor:
    """Returns an unread weight of one byte per value.

    Args:
      module: the weight's tensors.
      scales: the last part of the scales' name.
      dtypes: the safetensors dtypes that the weight may have.
      blocks: the possible sizes of blocks, outputs and inputs.
      zeros: the last part of the zeros' name; empty if there cannot be any.

    Raises:
      FileFormatError: a tensor is missing, or has another dtype or shape.
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
    """Returns the numbers of outputs and of inputs that share a scale; 0 inputs means one group per scale."""
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
    """Expands scales or zeros to `[out, groups]`."""
    x = x.reshape(1, 1) if x.size == 1 else x.reshape(len(x), -1)
    return np.repeat(x, block[0], axis=0)[:outputs]


def _read(module: Module, settings: Mapping[str, Any], scales: str) -> LazyTensor:
    block = settings.get("weight_block_size", (128, 128))
    return read_scaled(module, scales, FLOATS, [] if block is None else [(block[0], block[1])])


LAYOUTS = (
    Layout("weight_scale_inv", ("weight",), lambda module, settings: _read(module, settings, "weight_scale_inv")),
    Layout("weight_scale", ("weight",), lambda module, settings: _read(module, settings, "weight_scale")),
)
