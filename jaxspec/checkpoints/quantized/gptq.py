"""Reads 4-bit and 8-bit weights in GPTQ's layout.

`qweight` `[in * bits / 32, out]` packs consecutive inputs of an output into words, `scales` `[groups, out]` and
`qzeros` `[groups, out * bits / 32]` hold a scale and a zero for each group of inputs, and `g_idx` `[in]` the group of
each input. Groups are not in order if inputs were quantized in the order of their activations (`desc_act`); such
weights are read only as floats. With `dynamic`, modules may have other bits and groups, which their shapes say.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.checkpoints.quantized.module import SCALES, Layout, Module, grouped_tensor, runs, unpack, without_zeros
from jaxspec.families.base import Grouped, LazyTensor
from jaxspec.families.settings import FLAG, Setting

_BITS, _V1, _V2 = (4, 8), "gptq", "gptq_v2"
_FORMAT = Setting(f"{_V1!r} or {_V2!r}", lambda x: x in (_V1, _V2))


def _are_modules(x: Any) -> bool:
    """Returns whether these are settings of modules by pattern, with supported bits where they have bits."""
    each = x.values() if isinstance(x, Mapping) else [0]
    return all(one is None or (isinstance(one, Mapping) and one.get("bits", 4) in _BITS) for one in each)


SETTINGS = {
    "bits": Setting("4 or 8", lambda x: type(x) is int and x in _BITS),
    "group_size": Setting("a number of inputs, or -1 for all", lambda x: type(x) is int and (x > 0 or x == -1)),
    "sym": FLAG,
    "dynamic": Setting("the settings of modules, with 4 or 8 bits", _are_modules).or_null(),
    **dict.fromkeys(("checkpoint_format", "format"), _FORMAT.or_null()),
}


def _read(module: Module, settings: Mapping[str, Any]) -> LazyTensor:
    rows, outputs = module.find("qweight", ("I32",), (None, None)).shape
    bits: int = settings["bits"]
    if settings.get("dynamic"):
        words = module.find("qzeros", ("I32",), (None, None)).shape[1]
        bits = next((one for one in (bits, *_BITS) if words == -(-outputs * one // 32)), bits)
    inputs = rows * 32 // bits
    groups, _ = module.find("scales", SCALES, (None, outputs)).shape
    if groups == 0:
        raise module.error("scales", "expected one group or more, got none")
    module.find("qzeros", ("I32",), (groups, -(-outputs * bits // 32)))
    if "g_idx" in module:
        module.find("g_idx", ("I32", "I64"), (inputs,))

    def read() -> tuple[Grouped, np.ndarray | None]:
        values = unpack(module.read("qweight").T, bits)
        index = _read_groups(module, settings, inputs, groups)
        zero = _read_zero(
            module, {**settings, "bits": bits}, values, runs(inputs, inputs // groups) if index is None else index
        )
        scale = np.ascontiguousarray(module.read_scale("scales").T)
        return Grouped(values, scale, without_zeros(zero), bits), index

    return grouped_tensor((outputs, inputs), read)


def _read_zero(module: Module, settings: Mapping[str, Any], values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns the zeros `[out, groups]` of values `[out, in]`, given the group of each input."""
    bits, words, outputs = settings["bits"], module.read("qzeros").view(np.uint32), len(values)
    zero = unpack(words, bits)[:, :outputs].T
    version = settings.get("checkpoint_format") or settings.get("format") or _V1
    # Some writers of version 2 label it version 1. A symmetric model's zeros are in the middle.
    if version == _V2 or (settings.get("sym", True) and not zero.any()):
        return zero
    # Version 1 stores zeros minus one. Some writers subtract from whole words, so that a zero of 0 borrows from the
    # next one, and others from each number alone.
    ones, most = np.uint32((2**32 - 1) // (2**bits - 1)), 2 ** (bits - 1) - 1
    borrowed, alone = unpack(words + ones, bits)[:, :outputs].T, np.where(zero == most, -most - 1, zero + 1)
    if not (differ := borrowed != alone).any():
        return borrowed
    # Both are possible, and differ by one. The values of a group average to about its zero, since weights do to 0.
    members = np.eye(zero.shape[1], dtype=np.float32)[index]
    means = values.astype(np.float32) @ members / np.maximum(members.sum(axis=0), 1)
    errors = [np.abs(means - one)[differ].sum() for one in (borrowed, alone)]
    return borrowed if errors[0] <= errors[1] else alone.astype(np.int8)


def _read_groups(module: Module, settings: Mapping[str, Any], inputs: int, groups: int) -> np.ndarray | None:
    """Returns the group of each input; `None` for equal runs of inputs, in order."""
    # With several groups, an index of all zeros was never set.
    if "g_idx" in module and (groups == 1 or module.read("g_idx").any()):
        return module.read_groups("g_idx", inputs, groups)
    size = settings.get("group_size", -1)
    size = inputs if size == -1 else size
    if settings.get("dynamic") and -(-inputs // size) != groups and inputs % groups == 0:
        size = inputs // groups
    if -(-inputs // size) != groups:
        raise module.error("scales", f"expected {-(-inputs // size)} groups of {size} inputs, got {groups}")
    return None if inputs == groups * size else runs(inputs, size)


LAYOUTS = (Layout("qweight", ("qzeros", "scales", "g_idx"), _read),)
