"""Saves measured costs of rounds on this machine, in one small JSON file."""

import hashlib
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import jax

from jaxspec.checkpoints import zoo
from jaxspec.core.model import Model
from jaxspec.drafters.base import Drafter
from jaxspec.io.files import FileFormatError, check_fields, reading, write_text
from jaxspec.io.manifest import digest_of
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel

_logger = logging.getLogger(__name__)

_UNUSED = "costs are estimated until `jaxspec plan` measures them again"


def cost_file() -> Path:
    """Returns the path of saved costs: `costs.json` in `$JAXSPEC_CACHE`, or in the user's cache folder."""
    return zoo.cache_folder().parent / "costs.json"


def setting_of(target: Model, drafter: Drafter, batch: int) -> dict[str, Any]:
    """Returns everything that a round's costs depend on, for JSON: models enter by their shapes, not their values."""
    device, info = jax.devices()[0], drafter.info
    return {
        "device": f"{device.platform} {device.device_kind} x {jax.device_count()}, {os.cpu_count()} processors",
        "jax": jax.__version__,
        "target": f"{type(target).__name__} {_shapes(target)}",
        "kernels": kernels_of(target) if isinstance(target, LanguageModel) else "xla",
        "drafter": f"{type(drafter).__name__} {info.variant} {_shapes(info.network)}",
        "batch": batch,
    }


def save_costs(target: Model, drafter: Drafter, costs: dict[int, float], *, batch: int = 1) -> Path:
    """Saves the relative times of rounds, replacing earlier ones in the same setting.

    Args:
      target: the model to draft for.
      drafter: the drafter.
      costs: `costs[n]` is the time of a round with `n` drafts, divided by that of plain decoding.
      batch: the number of rows.

    Returns:
      The path of the file.

    Raises:
      OSError: the file cannot be written.
    """
    path, setting = cost_file(), setting_of(target, drafter, batch)
    kept = [one for one in _read(path) if one["setting"] != setting]
    found = {"setting": setting, "costs": {str(n): cost for n, cost in costs.items()}}
    found["sha256"] = digest_of(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps([*kept, found], indent=1))
    return path


def saved_costs(
    target: Model, drafter: Drafter, lengths: tuple[int, ...], *, batch: int = 1
) -> tuple[float, ...] | None:
    """Returns the saved costs of these lengths in the same setting; `None` if there are none.

    Also returns `None` in a multi-process run: all processes must agree, but each has its own files.
    """
    if jax.process_count() > 1:
        return None
    setting = setting_of(target, drafter, batch)
    try:
        path = cost_file()
    except OSError:  # without a home folder, nothing was saved
        return None
    for one in _read(path):
        if one["setting"] == setting and all(str(n) in one["costs"] for n in lengths):
            return tuple(float(one["costs"][str(n)]) for n in lengths)
    return None


def _read(path: Path) -> list[dict[str, Any]]:
    """Reads all saved costs. As the file is only a cache, a damaged one is reported and counts as empty."""
    if not path.exists():
        return []
    try:
        with reading(path, advice=_UNUSED):
            found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, list):
            raise FileFormatError(path, "", f"expected a list, got {type(found).__name__}", _UNUSED)
        for number, one in enumerate(found):
            _check(path, f"[{number}]", one)
    except FileFormatError as error:
        _logger.warning("%s", error)
        return []
    return found


def _check(path: Path, place: str, one: Any) -> None:
    """Raises `FileFormatError` unless `one` is an entry that `save_costs` wrote."""
    check_fields(path, place, one, {"setting": dict, "costs": dict}, _UNUSED)
    check_fields(path, f"{place}: costs", one["costs"], dict.fromkeys(one["costs"], (int, float)), _UNUSED)
    if not all(0 < cost < math.inf for cost in one["costs"].values()):
        raise FileFormatError(path, f"{place}: costs", "expected numbers above 0", _UNUSED)
    said = {name: value for name, value in one.items() if name != "sha256"}
    if "sha256" in one and one["sha256"] != digest_of(said):  # older entries have none
        raise FileFormatError(path, place, "it was changed after it was written", _UNUSED)


def _shapes(models: Any) -> str:
    leaves = [(str(path), x.shape, str(x.dtype)) for path, x in jax.tree.leaves_with_path(models)]
    return hashlib.sha256(repr(leaves).encode()).hexdigest()[:16]
