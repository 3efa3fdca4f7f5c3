"""Lists the methods of quantization by the names that `config.json` has for them, and reads what they wrote."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoints.quantized import awq, compressed, float8, gptq
from jaxspec.checkpoints.quantized.module import Layout, Module
from jaxspec.checkpoints.stored_tensor import StoredTensor
from jaxspec.families.base import LazyTensor
from jaxspec.families.settings import Setting, SettingError, check_settings

_KEYS = ("quantization_config", "compression_config")  # the second in older models of compressed-tensors
# Of activations and caches, which stay floats here.
_OF_ACTIVATIONS = tuple(
    f".{what}_{kind}"
    for what in ("input", "output", "activation", "k", "v", "q")
    for kind in ("scale", "zero_point", "global_scale")
)


@dataclasses.dataclass(frozen=True)
class Method:
    """Describes a method of quantization.

    Attributes:
      layouts: how it holds weights.
      settings: what those of its settings that are read may be.
      needs: the settings that it must have.
      check: checks what lies deeper in its settings, given what stands in front of their names in an error.
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
}


def read_quantized(
    source: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, LazyTensor]:
    """Returns the tensors of a checkpoint as those of a model that is not quantized.

    Args:
      source: the folder, for error messages.
      config: the contents of `config.json`.
      tensors: all tensors of the checkpoint.

    Returns:
      The tensors: each quantized weight as one of floats, the others as they are. All as they are if `config` does not
      speak of quantization, or of a method that is not in the table.

    Raises:
      SettingError: the method's settings are missing, of another type or not supported.
      FileFormatError: the tensors of a weight are missing, or of another type or shape.
    """
    method, settings = _method_of(config)
    if method is None:
        return dict(tensors)
    found: dict[str, LazyTensor] = {
        name: tensor for name, tensor in tensors.items() if not name.endswith(_OF_ACTIVATIONS)
    }
    for layout in method.layouts:
        for full in [name for name in found if name.endswith(f".{layout.first}")]:
            module = Module(source, full.removesuffix(f".{layout.first}"), tensors)
            weight = layout.read(module, settings)
            for part in (layout.first, *layout.parts):
                found.pop(f"{module.name}.{part}", None)
            if f"{module.name}.weight" in found:
                raise module.error("weight", f"expected the weight once, got it beside {layout.first} too")
            found[f"{module.name}.weight"] = weight
    return found


def hold_quantized(names: Iterable[str]) -> bool:
    """Returns whether tensors of these names hold a quantized weight in one of the layouts."""
    ends = tuple(f".{layout.first}" for method in METHODS.values() for layout in method.layouts)
    return any(name.endswith(ends) for name in names)


def is_read(config: Mapping[str, Any]) -> bool:
    """Returns whether a model is quantized by one of the methods in the table."""
    return any(_named(config.get(key)) for key in _KEYS)


def _named(settings: Any) -> str:
    """Returns the name of the method, empty if it is none of the table."""
    name = settings.get("quant_method") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and name in METHODS else ""


def _method_of(config: Mapping[str, Any]) -> tuple[Method | None, Mapping[str, Any]]:
    """Returns the method that a model is quantized by, and its settings, checked."""
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
