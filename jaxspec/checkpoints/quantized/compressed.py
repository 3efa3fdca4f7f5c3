"""Reads weights in the layouts of compressed-tensors: packed integers of 4 or 8 bits, int8, float8. Writes the first.

If packed, `weight_packed` is `[out, in * bits / 32]`, `weight_shape` holds the unpacked shape, `weight_scale` is
`[out, groups]`, `weight_zero_point` is `[out * bits / 32, groups]`, packed along the outputs, or int8 `[out, groups]`,
and `weight_g_idx` `[in]` is the group of each input if groups are not in order. The others are `weight` and
`weight_scale`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.checkpoints.quantized.float8 import BLOCK_SIZES, FLOATS, Block, read_scaled
from jaxspec.checkpoints.quantized.module import SCALES, Layout, Module, grouped_tensor, pack, unpack, without_zeros
from jaxspec.core.validate import shown
from jaxspec.families.base import Grouped, LazyTensor
from jaxspec.families.settings import Setting, check_settings, table_of

_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mixed-precision")
_FORMAT = Setting(f"one of {', '.join(_FORMATS)}", lambda x: x in _FORMATS)
_EMPTY = Setting("none: rotations of weights are not supported", lambda x: x == {} or x == {"config_groups": {}})
_DENSE = Setting("the format 'dense'", lambda x: isinstance(x, Mapping) and x.get("format", "dense") == "dense")
_WEIGHTS = {
    "num_bits": Setting("4 or 8", lambda x: type(x) is int and x in (4, 8)),
    "block_structure": BLOCK_SIZES,
}
_GROUP = {"weights": table_of(_WEIGHTS).or_null(), "format": _FORMAT.or_null()}
SETTINGS = {
    "format": _FORMAT,
    "config_groups": Setting(
        "an object of objects", lambda x: isinstance(x, Mapping) and all(isinstance(y, Mapping) for y in x.values())
    ),
    "transform_config": _EMPTY.or_null(),
    "sparsity_config": _DENSE.or_null(),
}


def check_groups(settings: Mapping[str, Any], prefix: str) -> None:
    """Checks the weight settings of groups of modules; groups for caches alone have none.

    Args:
      settings: the contents of `quantization_config`.
      prefix: the prefix of the settings' names in errors.

    Raises:
      SettingError: a group's weights do not have 4 or 8 bits, or its format is not supported.
    """
    for name, group in settings.get("config_groups", {}).items():
        check_settings(group, _GROUP, f"{prefix}config_groups.{name}.")


def _weights(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = settings.get("config_groups", {}).values()
    return (group["weights"] for group in groups if group.get("weights"))


def _read_packed(module: Module, settings: Mapping[str, Any]) -> LazyTensor:
    outputs, words = module.find("weight_packed", ("I32",), (None, None)).shape
    module.find("weight_shape", ("I64", "I32"), (2,))
    said, inputs = (int(size) for size in module.read("weight_shape"))
    bits = next((bits for bits in _all_bits(settings) if words == -(-inputs * bits // 32)), None)
    if said != outputs or inputs < 1 or bits is None:
        problem = f"({said}, {inputs}) does not fit {module.name}.weight_packed of shape ({outputs}, {words})"
        raise module.error("weight_shape", problem)
    scales = module.find("weight_scale", SCALES, (outputs, None)).shape
    groups = scales[1]
    if groups == 0 or inputs % groups:
        raise module.error("weight_scale", f"expected groups of equal size for {inputs} inputs, got {groups}")
    is_packed = _find_zero(module, outputs, groups, bits)
    if "weight_g_idx" in module:
        module.find("weight_g_idx", ("I32", "I64"), (inputs,))

    def read() -> tuple[Grouped, np.ndarray | None]:
        values = unpack(module.read("weight_packed"), bits)[:, :inputs]
        zero = None
        if is_packed is not None:
            zero = module.read("weight_zero_point")
            zero = without_zeros(unpack(zero.T, bits)[:, :outputs].T if is_packed else zero)
        found = Grouped(values, module.read_scale("weight_scale"), zero, bits)
        return found, _read_groups(module, inputs, groups)

    return grouped_tensor((outputs, inputs), read)


def _all_bits(settings: Mapping[str, Any]) -> list[int]:
    return sorted({weights.get("num_bits", 8) for weights in _weights(settings)})


def _find_zero(module: Module, outputs: int, groups: int, bits: int) -> bool | None:
    """Returns whether zeros are packed; `None` if there are none."""
    part = "weight_zero_point"
    if part not in module:
        return None
    if module.find(part, ("I32", "I8")).dtype == "I8":
        module.find(part, ("I8",), (outputs, groups))
        return False
    module.find(part, ("I32",), (-(-outputs * bits // 32), groups))
    return True


def _read_groups(module: Module, inputs: int, groups: int) -> np.ndarray | None:
    """Returns the group of each input; `None` for equal runs, or if any is -1, which means never set."""
    if "weight_g_idx" not in module or (module.read("weight_g_idx") == -1).any():
        return None
    return module.read_groups("weight_g_idx", inputs, groups)


def _read_bytes(module: Module, settings: Mapping[str, Any]) -> LazyTensor:
    blocks: list[Block] = [(b[0], b[1]) for one in _weights(settings) if (b := one.get("block_structure"))]
    return read_scaled(module, "weight_scale", ("I8", *FLOATS), blocks, "weight_zero_point")


_PACKED_PARTS = ("weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")
LAYOUTS = (
    Layout("weight_packed", _PACKED_PARTS, _read_packed),
    Layout("weight_scale", ("weight", "weight_zero_point"), _read_bytes),
)

_GROUP_SIZE = 32
# Factors of the largest value's scale that are tried for a group: a smaller scale may fit the other values better.
_TRIED = np.linspace(1, 0.75, 11, dtype=np.float32)


def write_packed(tensors: Mapping[str, np.ndarray], bits: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rounds matrices to 4 or 8 bits, with a scale for each 32 inputs: of those tried, the one of least squared error.

    Args:
      tensors: arrays by name; those of shape `[out, in]` whose names end in `.weight` are rounded.
      bits: the bits of each value, 4 or 8.

    Returns:
      The tensors in the packed layout, the others unchanged; and the matching `quantization_config`.

    Raises:
      ValueError: `bits` is another number, 32 does not divide the inputs of a matrix, or a matrix is not finite.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {shown(bits)}")
    found: dict[str, np.ndarray] = {}
    for name, x in tensors.items():
        if x.ndim != 2 or not x.size or not name.endswith(".weight"):
            found[name] = x
            continue
        if x.shape[1] % _GROUP_SIZE:
            raise ValueError(f"groups of {_GROUP_SIZE} must divide the inputs of {name}, got {x.shape[1]}")
        floats = np.asarray(x, np.float32)
        if not np.isfinite(floats).all():
            raise ValueError(f"{name} holds NaN or infinite values, which integers cannot represent")
        values, scale = _round(floats, bits)
        module = name.removesuffix(".weight")
        found[f"{module}.weight_packed"] = pack(values, bits)
        found[f"{module}.weight_scale"] = scale
        found[f"{module}.weight_shape"] = np.asarray(x.shape, np.int64)
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": _GROUP_SIZE}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return found, {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


def _round(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int8 values `[out, in]` for bfloat16 scales `[out, groups]`, which are rounded first."""
    groups, most = x.reshape(len(x), -1, _GROUP_SIZE), (1 << bits - 1) - 1
    largest = np.abs(groups).max(axis=-1) / most
    best = np.full(largest.shape, np.inf, np.float32)
    values, kept = np.zeros(groups.shape, np.int8), np.zeros(largest.shape, ml_dtypes.bfloat16)
    for part in _TRIED:
        scale = (largest * part).astype(ml_dtypes.bfloat16)
        wide = scale.astype(np.float32)[..., None]
        near = np.clip(np.rint(groups / np.where(wide == 0, 1, wide)), -most - 1, most)
        error = np.square(groups / most - near * (wide / most)).sum(axis=-1, dtype=np.float64)
        better = error < best
        best = np.where(better, error, best)
        values, kept = np.where(better[..., None], near.astype(np.int8), values), np.where(better, scale, kept)
    return values.reshape(x.shape), kept
