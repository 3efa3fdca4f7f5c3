"""Lists the quantization methods by their names in `config.json`, and reads their weights."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoints.quantized import awq, compressed, float8, gptq, mxfp4
from jaxspec.checkpoints.quantized.module import Layout, Module
from jaxspec.checkpoints.safetensors import StoredTensor
from jaxspec.families.base import LazyTensor
from jaxspec.families.settings import Setting, SettingError, check_settings

_KEYS = ("quantization_config", "compression_config")  # the second in older models of compressed-tensors
# Tensors for activations, caches and products of attention, which stay floats here; older programs call them otherwise.
_OF_ACTIVATIONS = re.compile(
    r"\.((input|output|activation|act|q|k|v|kv|prob|prob_output)_(scale|zero_point|global_scale)|input_scale_ub)$"
)


@dataclasses.dataclass(frozen=True)
class Method:
    """Describes a quantization method.

    Attributes:
      layouts: the layouts of its weights.
      settings: the allowed values of the settings that are read.
      needs: the required settings.
      check: checks nested settings, given the settings and the prefix of their names in errors.
    """

    layouts: tuple[Layout, ...]
    settings: Mapping[str, Setting]
    needs: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any], str], None] = lambda settings, prefix: None


_FLOAT8 = Method(float8.LAYOUTS, float8.SETTINGS)
METHODS: dict[str, Method] = {
    "gptq": Method(gptq.LAYOUTS, gptq.SETTINGS, ("bits",)),
    "awq": Method(awq.LAYOUTS, awq.SETTINGS),
    "compressed-tensors": Method(
        compressed.LAYOUTS, compressed.SETTINGS, ("format", "config_groups"), compressed.check_groups
    ),
    "fp8": _FLOAT8,
    "fbgemm_fp8": _FLOAT8,
    "mxfp4": Method(mxfp4.LAYOUTS, {}),
}


def read_quantized(
    source: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, LazyTensor]:
    """Returns the tensors of a checkpoint as those of an unquantized model.

    Args:
      source: the folder, for error messages.
      config: the contents of `config.json`.
      tensors: all tensors of the checkpoint.

    Returns:
      The tensors: quantized weights are read as floats, and the others are unchanged. All are unchanged if `config`
      names no quantization method, or one that is not in the table.

    Raises:
      SettingError: the method's settings are missing, of the wrong type or not supported.
      FileFormatError: tensors of a weight are missing, or have another dtype or shape.
    """
    method, settings = _method_of(config)
    if method is None:
        return dict(tensors)
    found: dict[str, LazyTensor] = {
        name: tensor for name, tensor in tensors.items() if not _OF_ACTIVATIONS.search(name)
    }
    for layout in method.layouts:
        for full in [name for name in found if name.endswith(f".{layout.first}")]:
            module = Module(source, full.removesuffix(f".{layout.first}"), tensors)
            weight = layout.read(module, settings)
            for part in (layout.first, *layout.parts):
                found.pop(f"{module.name}.{part}", None)
            if f"{module.name}.{layout.weight}" in found:
                raise module.error(layout.weight, f"expected the weight once, got it and {layout.first}")
            found[f"{module.name}.{layout.weight}"] = weight
    return found


def hold_quantized(names: Iterable[str]) -> bool:
    """Returns whether tensors with these names hold a quantized weight in one of the layouts."""
    ends = tuple(f".{layout.first}" for method in METHODS.values() for layout in method.layouts)
    return any(name.endswith(ends) for name in names)


def is_read(config: Mapping[str, Any]) -> bool:
    """Returns whether a model is quantized by a method in the table."""
    return any(_named(config.get(key)) for key in _KEYS)


def _named(settings: Any) -> str:
    """Returns the name of the method; empty if it is not in the table."""
    name = settings.get("quant_method") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and name in METHODS else ""


def _method_of(config: Mapping[str, Any]) -> tuple[Method | None, Mapping[str, Any]]:
    """Returns a model's quantization method and its checked settings."""
    for key in _KEYS:
        settings = config.get(key) or {}
        if name := _named(settings):
            method, prefix = METHODS[name], f"{key}."
            check_settings(settings, method.settings, prefix)
            if lacking := [need for need in method.needs if settings.get(need) is None]:
                raise SettingError(f"{prefix}{lacking[0]}", f"the configuration of quant_method {name!r} lacks it")
            method.check(settings, prefix)
            return method, settings
    return None, {}
