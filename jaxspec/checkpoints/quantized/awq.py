"""Reads 4-bit weights in AWQ's layout for matrix products ("gemm").

`qweight` `[in, out / 8]` and `qzeros` `[groups, out / 8]` hold eight neighboring outputs per word, even ones first;
`scales` is `[groups, out]`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.checkpoints.quantized.module import SCALES, Layout, Module, grouped_tensor, unpack, without_zeros
from jaxspec.families.base import Grouped, LazyTensor
from jaxspec.families.settings import FLAG, Setting

_BITS = 4
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the outputs in a word, lowest bits first
_FOUR = Setting("4", lambda x: type(x) is int and x == _BITS)
_GEMM = Setting("'gemm'", lambda x: isinstance(x, str) and x.lower() == "gemm")
SETTINGS = {
    **dict.fromkeys(("bits", "w_bit"), _FOUR),
    **dict.fromkeys(("version", "format"), _GEMM.or_null()),
    "zero_point": FLAG,
}


def _read(module: Module, settings: Mapping[str, Any]) -> LazyTensor:
    inputs, words = module.find("qweight", ("I32",), (None, None)).shape
    outputs = words * 8
    groups, _ = module.find("scales", SCALES, (None, outputs)).shape
    if groups == 0 or inputs % groups:
        raise module.error("scales", f"expected groups of equal size for {inputs} inputs, got {groups}")
    has_zeros = settings.get("zero_point", True) or "qzeros" in module
    if has_zeros:
        module.find("qzeros", ("I32",), (groups, words))

    def read() -> tuple[Grouped, None]:
        zero = without_zeros(_unpack(module.read("qzeros"))) if has_zeros else None
        scale = np.ascontiguousarray(module.read_scale("scales").T)
        return Grouped(_unpack(module.read("qweight")), scale, zero, _BITS), None

    return grouped_tensor((outputs, inputs), read)


def _unpack(words: np.ndarray) -> np.ndarray:
    """Unpacks words `[n, out / 8]` to int8 `[out, n]`."""
    numbers = unpack(words, _BITS).reshape(len(words), -1, 8)
    return np.ascontiguousarray(numbers[..., np.argsort(_ORDER)].reshape(len(words), -1).T)


LAYOUTS = (Layout("qweight", ("qzeros", "scales"), _read),)
