"""Reads experts in MXFP4 as gpt-oss stores them: `gate_up_proj_blocks` and `_scales`, and `down_proj` alike.

blocks    [experts, outputs, inputs / 32, 16]   bytes of two numbers, the first in the low bits
scales    [experts, outputs, inputs / 32]       powers of two, of which 127 is one
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.checkpoints.quantized.module import Layout, Module
from jaxspec.families.base import Blocks, LazyTensor

_INPUTS, _BYTES = 32, 16  # of a block
_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0], np.float32)
_FORMAT = "MXFP4"  # GGML's name
# The kernels multiply by half of a scale in float16, of which these are the first and the last.
_LEAST_SCALE, _MOST_SCALE, _ONE = 104, 143, 127


def _read(module: Module, settings: Mapping[str, Any], product: str) -> LazyTensor:
    blocks, scales = f"{product}_blocks", f"{product}_scales"
    count, outputs, groups, _ = module.find(blocks, ("U8",), (None, None, None, _BYTES)).shape
    module.find(scales, ("U8",), (count, outputs, groups))

    def each() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the numbers' codes and the scales of each expert, so that only one's are held."""
        for some, scale in zip(module.read(blocks), module.read(scales), strict=True):
            codes = np.stack([some & 15, some >> 4], axis=-1).reshape(outputs, groups, _INPUTS)
            yield codes, scale

    def read() -> np.ndarray:
        found = np.empty((count, outputs, groups * _INPUTS), np.float32)
        for expert, (codes, scale) in enumerate(each()):
            wide = scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[..., None]
            found[expert] = (_VALUES[codes] * wide).reshape(outputs, -1)
        return found

    def as_blocks() -> Blocks:
        rows, holds = np.empty((count, outputs, groups, 1 + _BYTES), np.uint8), True
        for expert, (codes, scale) in enumerate(each()):
            scale = np.where((codes & 7).any(axis=-1), scale, _ONE)  # those of zeros have no meaning
            holds = holds and bool(((scale >= _LEAST_SCALE) & (scale <= _MOST_SCALE)).all())
            rows[expert, ..., 0] = scale
            rows[expert, ..., 1:] = codes[..., :_BYTES] | codes[..., _BYTES:] << 4
        return Blocks(_FORMAT if holds else f"{_FORMAT} beyond float16", rows.reshape(count, outputs, -1))

    return LazyTensor((count, outputs, groups * _INPUTS), read, as_blocks)


LAYOUTS = tuple(
    Layout(
        f"{product}_blocks",
        (f"{product}_scales",),
        functools.partial(_read, product=product),
        weight=f"{product}.weight",
    )
    for product in ("gate_up_proj", "down_proj")
)
