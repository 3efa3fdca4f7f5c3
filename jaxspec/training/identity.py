"""What makes two runs the same, so that one may go on from the other's checkpoint."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.training.files import read_json, write_text

_NAME = "run.json"
_SHOWN = 4


def described(value: Any) -> Any:
    """Plain values for JSON: of dataclasses the class and fields, of arrays a digest, of other objects the class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [described(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return digest(value)
    return getattr(value, "__name__", type(value).__name__)


def digest(*trees: Any) -> str:
    """Sixteen hexadecimal digits that tell arrays from others."""
    hashed = hashlib.sha256()
    for array in map(np.asarray, jax.tree.leaves(trees)):
        hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]


def check_same_run(folder: Path, run: dict[str, Any]) -> None:
    """Writes down what a run is, or compares it with what the folder's own run was.

    Raises:
      ValueError: the folder holds another run; says in what they differ.
    """
    path, run = folder / _NAME, json.loads(json.dumps(run))
    if not path.exists():
        write_text(path, json.dumps(run, indent=2) + "\n")
        return
    before, now = dict(_leaves(read_json(path))), dict(_leaves(run))
    differ = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if differ:
        told = "; ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in differ[:_SHOWN])
        more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise ValueError(f"{folder} holds another run: {told}{more}. Pass the same, or another --out")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not parts:
        yield name, value
        return
    for key, part in parts:
        yield from _leaves(part, f"{name}.{key}" if name else str(key))
