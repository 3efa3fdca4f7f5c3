"""Reads safetensors files: the header, and tensors as stored, including integers and one-byte floats.

The `safetensors` library checks headers too, but its errors do not name the tensor and the field; these do.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.families.base import LazyTensor
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, check_is_no_pointer, parse_json, reading

_METADATA = "__metadata__"
_MOST_BYTES = 100_000_000  # of a header, as in `safetensors`
_MOST_DIMENSION = 2**48
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Describes a tensor: its safetensors dtype, its shape, and where its bytes start and end in the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Reads the header's entry of each tensor.

    Args:
      path: the file.

    Raises:
      FileFormatError: the header is damaged, or does not match the file's data.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(64)
        check_is_no_pointer(path, start)
        size, count = path.stat().st_size, int.from_bytes(start[:8], "little")
        if not 2 <= count <= min(size - 8, _MOST_BYTES):
            problem = (
                f"expected a header and then data, the header would be {count:,} bytes long and the file is {size:,}"
            )
            raise FileFormatError(path, "", problem, DOWNLOAD_AGAIN)
        file.seek(8)
        header = parse_json(path, file.read(count))
    metadata = header.pop(_METADATA, None) or {}
    wrong = [key for key, x in metadata.items() if not isinstance(x, str)] if isinstance(metadata, dict) else [""]
    if wrong:
        raise FileFormatError(path, f"{_METADATA} {wrong[0]}".strip(), "expected strings by name", DOWNLOAD_AGAIN)
    entries = {name: _entry(path, name, values) for name, values in header.items()}
    _check_places(path, entries, size - 8 - count)
    return entries


def _entry(path: Path, name: str, values: Any) -> Entry:
    """Checks the entry of one tensor."""

    def check(is_right: bool, field: str, expected: str) -> None:
        if not is_right:
            place = f"tensor {name}: {field}" if field else f"tensor {name}"
            got = values.get(field, "none") if field else values
            raise FileFormatError(path, place, f"expected {expected}, got {str(got)[:80]}", DOWNLOAD_AGAIN)

    is_size = lambda x: type(x) is int and 0 <= x < _MOST_DIMENSION  # noqa: E731
    is_sizes = lambda x: isinstance(x, list) and all(map(is_size, x))  # noqa: E731
    check(isinstance(values, dict), "", "an object with dtype, shape and data_offsets")
    dtype, shape, offsets = (values.get(field) for field in ("dtype", "shape", "data_offsets"))
    check(isinstance(dtype, str) and dtype in _BITS, "dtype", f"one of {', '.join(_BITS)}")
    check(is_sizes(shape), "shape", "a list of sizes")
    check(is_sizes(offsets) and len(offsets) == 2, "data_offsets", "two offsets in the data")
    needed = -(-math.prod(shape) * _BITS[dtype] // 8)
    if offsets[1] - offsets[0] != needed:
        problem = f"{dtype} of the shape {shape} takes {needed:,} bytes, data_offsets are {offsets}"
        raise FileFormatError(path, f"tensor {name}: dtype, shape or data_offsets", problem, DOWNLOAD_AGAIN)
    return Entry(dtype, tuple(shape), *offsets)


def _check_places(path: Path, entries: dict[str, Entry], size: int) -> None:
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            place = f"tensors {before} and {name}" if before else f"tensor {name}"
            problem = f"expected one to begin where the other ends, at byte {end:,}, got {entry.start:,}"
            raise FileFormatError(path, f"{place}: data_offsets", problem, DOWNLOAD_AGAIN)
        end, before = entry.end, name
    if end != size:
        problem = f"the last, {before or 'none'}, ends at byte {end:,} of the data, of which there are {size:,}"
        raise FileFormatError(path, "data_offsets", problem, DOWNLOAD_AGAIN)


# The dtypes of quantized weights; the NumPy reader of `safetensors` does not know all of them.
_DTYPES = {
    "U8": np.uint8,
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
    """Holds a tensor of a safetensors file, whose `read` returns floats only.

    Attributes:
      dtype: the safetensors dtype.
      read_stored: reads the tensor as stored, in any dtype.
    """

    dtype: str
    read_stored: Callable[[], np.ndarray]


def read_stored(path: Path, entry: Entry) -> np.ndarray:
    """Reads a tensor as stored.

    Args:
      path: the file.
      entry: the tensor's entry in the header.

    Raises:
      ValueError: the file is shorter than its header says, or weights are never stored in the dtype.
    """
    if entry.dtype not in _DTYPES:
        raise ValueError(f"expected one of {', '.join(_DTYPES)}, got {entry.dtype}")
    with path.open("rb") as file:
        count = int.from_bytes(file.read(8), "little")
        file.seek(8 + count + entry.start)
        raw = file.read(entry.end - entry.start)
    return np.frombuffer(raw, _DTYPES[entry.dtype]).reshape(entry.shape)
