"""Reads weights in the layout of GPTQ, of 4 or 8 bits.

`qweight` `[in * bits / 32, out]` holds the numbers of an output in words one below the other, `scales` `[groups, out]`
and `qzeros` `[groups, out * bits / 32]` a scale and a zero for each group of inputs, and `g_idx` `[in]` the group of
each input: not in order where inputs were quantized by their activations (`desc_act`), so that such weights are read
as floats alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.checkpoints.quantized.module import SCALES, Layout, Module, grouped_tensor, runs, without_zeros
from jaxspec.checkpoints.quantized.packing import center, unpack
from jaxspec.families.base import LazyTensor
from jaxspec.families.grouped import Grouped
from jaxspec.families.settings import FLAG, Setting

_V1, _V2 = "gptq", "gptq_v2"
_FORMAT = Setting(f"{_V1!r} or {_V2!r}", lambda x: x in (_V1, _V2))
SETTINGS = {
    "bits": Setting("4 or 8", lambda x: type(x) is int and x in (4, 8)),
    "group_size": Setting("a number of inputs, or -1 for all", lambda x: type(x) is int and (x > 0 or x == -1)),
    "sym": FLAG,
    **dict.fromkeys(("checkpoint_format", "format"), _FORMAT.or_null()),
}


def _read(module: Module, settings: Mapping[str, Any]) -> LazyTensor:
    bits: int = settings["bits"]
    rows, outputs = module.find("qweight", ("I32",), (None, None)).shape
    inputs = rows * 32 // bits
    groups, _ = module.find("scales", SCALES, (None, outputs)).shape
    if groups == 0:
        raise module.error("scales", "expected one group or more, got none")
    module.find("qzeros", ("I32",), (groups, -(-outputs * bits // 32)))
    if "g_idx" in module:
        module.find("g_idx", ("I32", "I64"), (inputs,))

    def read() -> tuple[Grouped, np.ndarray | None]:
        values = center(unpack(module.read("qweight").T, bits), bits)
        zero = _read_zero(module, settings)[:, :outputs].T
        scale = np.ascontiguousarray(module.read_scale("scales").T)
        return Grouped(values, scale, without_zeros(zero), bits), _read_groups(module, settings, inputs, groups)

    return grouped_tensor((outputs, inputs), read)


def _read_zero(module: Module, settings: Mapping[str, Any]) -> np.ndarray:
    """Returns the zeros `[groups, out]`, and more outputs where the last word is not full."""
    bits, words = settings["bits"], module.read("qzeros").view(np.uint32)
    zero = center(unpack(words, bits), bits)
    version = settings.get("checkpoint_format") or settings.get("format") or _V1
    # Some writers of the second version call it the first. A symmetric model's zeros are in the middle.
    if version == _V2 or (settings.get("sym", True) and not zero.any()):
        return zero
    # The first version stores one less. Whoever wrote a zero of 0 subtracted from whole words, so that it borrowed.
    ones = np.uint32((2**32 - 1) // (2**bits - 1))
    return center(unpack(words + ones, bits), bits)


def _read_groups(module: Module, settings: Mapping[str, Any], inputs: int, groups: int) -> np.ndarray | None:
    """Returns the group of each input, or nothing for equal runs of inputs, in order."""
    # Where there are several groups, all zeros are what was never set.
    if "g_idx" in module and (groups == 1 or module.read("g_idx").any()):
        return module.read_groups("g_idx", inputs, groups)
    size = settings.get("group_size", -1)
    size = inputs if size == -1 else size
    if -(-inputs // size) != groups:
        raise module.error("scales", f"expected {-(-inputs // size)} groups of {size} inputs, got {groups}")
    return None if inputs == groups * size else runs(inputs, size)


LAYOUTS = (Layout("qweight", ("qzeros", "scales", "g_idx"), _read),)
