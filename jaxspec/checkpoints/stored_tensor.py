"""Reads a tensor of a safetensors file as it is stored: integers and floats of one byte too."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxspec.checkpoints.safetensors_header import Entry
from jaxspec.families.base import LazyTensor

# Those that quantized weights consist of, which NumPy's reader in `safetensors` does not all know.
_DTYPES = {
    "I8": np.int8,
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTensor(LazyTensor):
    """Holds a tensor of a safetensors file, whose `read` gives floats alone.

    Attributes:
      dtype: its type by safetensors' name.
      read_stored: reads it as it is, whatever its type.
    """

    dtype: str
    read_stored: Callable[[], np.ndarray]


def read_stored(path: Path, entry: Entry) -> np.ndarray:
    """Reads a tensor as it is stored.

    Args:
      path: the file.
      entry: what its header says of the tensor.

    Raises:
      ValueError: the file is shorter than its header says, or the type is none that weights are stored in.
    """
    if entry.dtype not in _DTYPES:
        raise ValueError(f"expected one of {', '.join(_DTYPES)}, got {entry.dtype}")
    with path.open("rb") as file:
        count = int.from_bytes(file.read(8), "little")
        file.seek(8 + count + entry.start)
        raw = file.read(entry.end - entry.start)
    return np.frombuffer(raw, _DTYPES[entry.dtype]).reshape(entry.shape)
