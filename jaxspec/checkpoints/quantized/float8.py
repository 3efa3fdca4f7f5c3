"""Reads weights of float8 as transformers ("fp8", in blocks), vLLM ("fp8", a scale a weight) and FBGEMM write them."""

from collections.abc import Mapping
from typing import Any

from jaxspec.checkpoints.quantized.module import Layout, Module
from jaxspec.checkpoints.quantized.scaled import FLOATS, read_scaled
from jaxspec.families.base import LazyTensor
from jaxspec.families.settings import SIZE, Setting

_BLOCK = Setting(
    "two sizes", lambda x: isinstance(x, list) and len(x) == 2 and all(SIZE.accepts(size) for size in x)
).or_null()
SETTINGS = {"weight_block_size": _BLOCK}


def _read(module: Module, settings: Mapping[str, Any], scales: str) -> LazyTensor:
    block = settings.get("weight_block_size", (128, 128))
    return read_scaled(module, scales, FLOATS, [] if block is None else [(block[0], block[1])])


LAYOUTS = (
    Layout("weight_scale_inv", ("weight",), lambda module, settings: _read(module, settings, "weight_scale_inv")),
    Layout("weight_scale", ("weight",), lambda module, settings: _read(module, settings, "weight_scale")),
)
