"""Reads the GGUF container: metadata and a table of tensors, every read checked against the file's size.

`gguf.GGUFReader` reads the same format, but it takes seconds for a vocabulary of 100,000 strings
and can loop for ever on a damaged count; tables of types and the dequantization come from it.
"""

import dataclasses
import functools
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from jaxspec.families.base import LazyTensor

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_ADVICE = "delete it and download it again"


@dataclasses.dataclass(frozen=True)
class GGUFFile:
    """Reads an open GGUF file.

    Attributes:
      metadata: its key-value pairs; arrays are lists.
      tensors: its tensors, dequantized to float32 when read; shapes in row-major order, which is
        the reverse of the order GGUF writes them in.
    """

    metadata: dict[str, Any]
    tensors: dict[str, LazyTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Opens a GGUF file (version 2 or 3, little-endian).

    Args:
      path: the file, which stays mapped into memory while its tensors are unread.

    Raises:
      ValueError: it is no GGUF file, is truncated or corrupted, or is of an unsupported kind.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; {_ADVICE}")
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if buffer[:4] != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file: it starts with {buffer[:4]!r}, expected b'GGUF'")
    try:
        return _parse(_Cursor(buffer))
    except (struct.error, _Damaged, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is truncated or corrupted ({error}); {_ADVICE}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


class _Damaged(Exception):
    """Signals that what the file says about itself is impossible."""


class _Cursor:
    """Reads little-endian values one after another and never beyond the end."""

    def __init__(self, buffer: mmap.mmap):
        self.buffer, self.position = buffer, 4

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.buffer):
            raise _Damaged(f"byte {end:,} is asked for, the file has {len(self.buffer):,}")
        start, self.position = self.position, end
        return self.buffer[start:end]

    def string(self) -> str:
        return self.bytes(self.scalar("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise _Damaged(f"metadata of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            raw = self.bytes(count * struct.calcsize("<" + _SCALARS[kind]))
            return list(struct.unpack(f"<{count}{_SCALARS[kind]}", raw))
        return [self.value(kind) for _ in range(count)]


def _parse(cursor: _Cursor) -> GGUFFile:
    version = cursor.scalar("I")
    if version not in (2, 3):
        hint = " (big-endian)" if version & 0xFFFF == 0 else ""
        raise ValueError(f"GGUF version {version}{hint} is not supported, expected 2 or 3, little-endian")
    tensor_count, pair_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(pair_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    if (parts := metadata.get("split.count", 1)) > 1:
        raise ValueError(f"this is one of {parts} parts; merge them first (gguf-split --merge)")
    table = [_table_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"alignment {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: _tensor(cursor.buffer, name, shape, kind, start + offset) for name, shape, kind, offset in table}
    return GGUFFile(metadata, tensors)


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.string(), cursor.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise _Damaged(f"tensor {name!r} of {dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _tensor(buffer: mmap.mmap, name: str, shape: tuple[int, ...], kind: int, start: int) -> LazyTensor:
    try:
        quantization = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise _Damaged(f"tensor {name} has unknown type {kind}") from error
    if not shape or shape[-1] % block:
        raise _Damaged(f"tensor {name} of shape {shape} cannot be of type {quantization.name}")
    rows, row_bytes = int(np.prod(shape[:-1], dtype=object)), shape[-1] // block * block_bytes
    end = start + rows * row_bytes
    if end > len(buffer):
        raise _Damaged(f"tensor {name} ends at byte {end:,}, the file has {len(buffer):,}")
    return LazyTensor(shape, functools.partial(_read, buffer, name, shape, quantization, start, row_bytes))


def _read(
    buffer: mmap.mmap,
    name: str,
    shape: tuple[int, ...],
    quantization: GGMLQuantizationType,
    start: int,
    row_bytes: int,
) -> np.ndarray:
    rows = (*shape[:-1], row_bytes)
    data = np.frombuffer(buffer, np.uint8, count=int(np.prod(rows)), offset=start).reshape(rows)
    native = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    if quantization in native:
        return data.view(native[quantization])
    try:
        return dequantize(data, quantization)
    except NotImplementedError as error:
        raise ValueError(f"tensor {name} is {quantization.name}, which cannot be dequantized") from error
