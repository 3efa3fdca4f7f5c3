"""Counts the multiplications and additions of products in a compiled program.

The TPU compiler writes products as convolutions: axes that only the weight has become windows over padding, which is
not multiplied. Pallas kernels are not counted.

    [32, 4096] x [3072, 2, 4096]    input bf0, kernel 0oi, output b0f; a window of 2 over one place, padded by 1_1
"""

import math
import re

from jaxspec.compiled.hlo import Computation, Instruction, Program

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = r"lhs_contracting_dims=\{([\d,]*)\}"


def flops(program: Program, one: Instruction, inside: Computation) -> int:
    """Returns the multiplications and additions of the products that an instruction is or contains.

    Args:
      program: the program.
      one: the instruction.
      inside: the computation that it is in.
    """
    found = _of_product(one, inside)
    if (called := program.computations.get(one.computation("calls"))) and one.opcode == "fusion":
        found += sum(flops(program, inner, called) for inner in called.values())
    return found


def _of_product(one: Instruction, inside: Computation) -> int:
    shapes = [inside[name].arrays[0].shape for name in one.operands if name in inside and inside[name].arrays]
    if one.opcode == "dot" and shapes:
        contracted = (one.find(_CONTRACTED) or "").split(",")
        return 2 * math.prod(one.arrays[0].shape) * math.prod(shapes[0][int(axis)] for axis in contracted if axis)
    labels = _LABELS.search(one.text)
    if one.opcode != "convolution" or labels is None or len(shapes) != 2:
        return 0
    sizes = [
        dict(zip(names, shape, strict=True))
        for names, shape in zip(labels.groups(), (*shapes, one.arrays[0].shape), strict=True)
    ]
    places = math.prod(_pairs(sizes, axis, window) for axis, window in _windows(one, len(shapes[0]) - 2).items())
    return 2 * sizes[2]["b"] * sizes[2]["f"] * sizes[1]["i"] * places


def _windows(one: Instruction, axes: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns each window's settings, by the name of its axis."""
    found = _WINDOW.search(one.text)
    settings = dict(part.split("=") for part in found[1].split()) if found else {}
    return {
        str(axis): {name: tuple(map(int, values.split("x")[axis].split("_"))) for name, values in settings.items()}
        for axis in range(axes)
    }


def _pairs(sizes: list[dict[str, int]], axis: str, window: dict[str, tuple[int, ...]]) -> int:
    """Counts the pairs of an output's and a window's place that meet a place of the input, not its padding."""
    (stride,), (spread,), (dilation,) = (window.get(name, (1,)) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    start, end = -window.get("pad", (0, 0))[0], (sizes[0][axis] - 1) * spread
    places = (start + o * stride + w * dilation for o in range(sizes[2][axis]) for w in range(sizes[1][axis]))
    return sum(0 <= place <= end and place % spread == 0 for place in places)
