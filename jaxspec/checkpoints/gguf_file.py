"""Reads the GGUF container: metadata and a table of tensors, every count checked against the file's size.

`gguf.GGUFReader` reads the same format, but it takes seconds for a vocabulary of 100,000 strings
and can loop for ever on a damaged count; tables of types and the dequantization come from it.
"""

import dataclasses
import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, check_is_no_pointer, reading
from jaxspec.families.base import Blocks, LazyTensor

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
# The least that one takes: a pair of an empty key and a byte, a tensor of an empty name and no dimensions.
_PAIR_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
# No real file has more. A damaged count in a file of many gigabytes is still below its size, and would fill the memory.
_ALIGNMENTS = tuple(2**power for power in range(17))
_LONGEST, _LONGEST_NAME, _DEEPEST = 2**24, 2**16, 4
_NATIVE = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


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
      FileFormatError: it is no GGUF file, is truncated or corrupted, or is of an unsupported kind.
    """
    with reading(path), path.open("rb") as file:
        if path.stat().st_size == 0:
            raise FileFormatError(path, "", "the file is empty", DOWNLOAD_AGAIN)
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    check_is_no_pointer(path, buffer[:64])
    if buffer[:4] != b"GGUF":
        raise FileFormatError(path, "", f"not a GGUF file: it starts with {buffer[:4]!r}, expected b'GGUF'")
    return _parse(path, _Cursor(buffer))


class _Cursor:
    """Reads little-endian values one after another and never beyond the end."""

    def __init__(self, buffer: mmap.mmap):
        self.buffer, self.position = buffer, 4

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))
        return value

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.buffer):
            raise ValueError(f"truncated or corrupted: it ends at byte {end:,}, the file has {len(self.buffer):,}")
        start, self.position = self.position, end
        return self.buffer[start:end]

    def count(self, each: int, most: int = _LONGEST) -> int:
        """Reads how many things follow, of at least `each` bytes."""
        count = self.scalar("Q")
        if count > (most := min(most, (len(self.buffer) - self.position) // each)):
            raise ValueError(f"truncated or corrupted: it has {count:,} entries, of which {most:,} have room")
        return count

    def string(self, most: int = _LONGEST) -> str:
        return self.bytes(self.count(1, most)).decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), depth)
        if kind not in _SCALARS:
            raise ValueError(f"unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, depth: int) -> list[Any]:
        if kind in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[kind])
            count = self.count(size)
            return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self.bytes(count * size)))
        if depth == _DEEPEST:
            raise ValueError(f"expected lists in at most {_DEEPEST} lists")
        return [self.value(kind, depth + 1) for _ in range(self.count(8))]


def _parse(path: Path, cursor: _Cursor) -> GGUFFile:
    with reading(path, "version"):
        version = cursor.scalar("I")
    if version not in (2, 3):
        hint = " (big-endian)" if version & 0xFFFF == 0 else ""
        raise FileFormatError(path, "version", f"{version}{hint} is not supported, expected 2 or 3, little-endian")
    with reading(path, "count of tensors"):
        tensor_count = cursor.count(_TENSOR_BYTES)
    with reading(path, "count of keys"):
        pair_count = cursor.count(_PAIR_BYTES)
    metadata = _metadata(path, cursor, pair_count)
    parts, alignment = metadata.get("split.count", 1), metadata.get("general.alignment", 32)
    if type(parts) is not int or parts > 1:
        raise FileFormatError(
            path, "split.count", f"this is one of {parts} parts", "merge them first (gguf-split --merge)"
        )
    if type(alignment) is not int or alignment not in _ALIGNMENTS:
        problem = f"expected a power of two up to {_ALIGNMENTS[-1]}, got {alignment!r}"
        raise FileFormatError(path, "general.alignment", problem, DOWNLOAD_AGAIN)
    return GGUFFile(metadata, _tensors(path, cursor, tensor_count, alignment, metadata))


def _metadata(path: Path, cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        with reading(path, f"key {number + 1} of {count}{_behind(metadata)}"):
            key = cursor.string(_LONGEST_NAME)
        if key in metadata:
            raise FileFormatError(path, key, "the key is there twice", DOWNLOAD_AGAIN)
        with reading(path, key):
            metadata[key] = cursor.value(cursor.scalar("I"))
    return metadata


def _behind(before: dict[str, Any]) -> str:
    """Names what was read last: where the next thing makes no sense, that one's length may be wrong."""
    return f", behind {next(reversed(before))}" if before else ""


def _tensors(
    path: Path, cursor: _Cursor, count: int, alignment: int, metadata: dict[str, Any]
) -> dict[str, LazyTensor]:
    """Reads the table of tensors, whose data follow each other in its order, as every writer puts them."""
    table: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int, int]] = {}
    end = 0
    for number in range(count):
        with reading(path, f"tensor {number + 1} of {count}{_behind(table or metadata)}"):
            name = cursor.string(_LONGEST_NAME)
        if name in table:
            raise FileFormatError(path, f"tensor {name}", "the name is there twice", DOWNLOAD_AGAIN)
        with reading(path, f"tensor {name}"):
            shape, quantization, row_bytes, offset = _table_entry(cursor)
            if offset != (expected := _aligned(end, alignment)):
                place = f"byte {expected:,} of the data{_behind(table)} (general.alignment: {alignment})"
                raise ValueError(f"expected it at {place}, got {offset:,}")
        table[name] = shape, quantization, row_bytes, offset
        end = offset + math.prod(shape[:-1]) * row_bytes
    start = _aligned(cursor.position, alignment)
    _check_end(path, {name: offset for name, (*_, offset) in table.items()}, start, end, len(cursor.buffer), alignment)
    return {
        name: _lazy(path, cursor.buffer, name, shape, quantization, start + offset, row_bytes)
        for name, (shape, quantization, row_bytes, offset) in table.items()
    }


def _lazy(
    path: Path,
    buffer: mmap.mmap,
    name: str,
    shape: tuple[int, ...],
    quantization: GGMLQuantizationType,
    start: int,
    row_bytes: int,
) -> LazyTensor:
    def rows() -> np.ndarray:
        sizes = (*shape[:-1], row_bytes)
        return np.frombuffer(buffer, np.uint8, count=math.prod(sizes), offset=start).reshape(sizes)

    read = lambda: _dequantized(path, name, rows(), quantization)  # noqa: E731
    if quantization in _NATIVE:
        return LazyTensor(shape, read)
    return LazyTensor(shape, read, lambda: Blocks(quantization.name, rows()))


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _check_end(path: Path, offsets: dict[str, int], start: int, end: int, size: int, alignment: int) -> None:
    """Checks that the tensors end where the file does."""
    if not offsets:
        return
    said = f"{size:,} (general.alignment: {alignment})"
    if start + end > size:
        name = next((last for last in reversed(offsets) if start + offsets[last] < size), next(iter(offsets)))
        problem = f"truncated or corrupted: the tensors end at byte {start + end:,}, the file has {said}"
        raise FileFormatError(path, f"tensor {name} and those behind it", problem, DOWNLOAD_AGAIN)
    if size > start + _aligned(end, alignment):
        problem = f"the last one ends at byte {start + end:,}, the file has {said}"
        raise FileFormatError(path, "tensors", problem, DOWNLOAD_AGAIN)


def _table_entry(cursor: _Cursor) -> tuple[tuple[int, ...], GGMLQuantizationType, int, int]:
    """Reads a tensor's shape, type, bytes a row and offset."""
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"expected 1 to {_MAX_DIMENSIONS} dimensions, got {dimensions}")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in GGMLQuantizationType.__members__.values():
        raise ValueError(f"unknown type {kind}")
    quantization = GGMLQuantizationType(kind)
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in shape or shape[-1] % block:
        raise ValueError(f"a shape of {shape} cannot be of type {quantization.name}")
    row_bytes = shape[-1] // block * block_bytes
    if math.prod(shape[:-1]) * row_bytes > len(cursor.buffer):
        raise ValueError(f"truncated or corrupted: {shape} is larger than the file, {len(cursor.buffer):,} bytes")
    return shape, quantization, row_bytes, offset


def _dequantized(path: Path, name: str, rows: np.ndarray, quantization: GGMLQuantizationType) -> np.ndarray:
    if quantization in _NATIVE:
        return rows.view(_NATIVE[quantization])
    try:
        return dequantize(rows, quantization)
    except NotImplementedError as error:
        problem = f"{quantization.name} cannot be dequantized"
        raise FileFormatError(path, f"tensor {name}", problem, "pass a file of another type, such as Q8_0") from error
