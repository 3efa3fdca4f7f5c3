"""Finds and checks the tensors of a quantized weight, and unpacks numbers from 32-bit words."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoints.safetensors import StoredTensor
from jaxspec.families.base import Grouped, LazyTensor, Shape
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, reading

SCALES = ("F16", "BF16", "F32", "F8_E8M0")


@dataclasses.dataclass(frozen=True)
class Module:
    """Finds the tensors of one weight among those of a checkpoint.

    Attributes:
      source: the folder, for error messages.
      name: the prefix of its tensors' names.
      tensors: all tensors of the checkpoint.
    """

    source: Path
    name: str
    tensors: Mapping[str, StoredTensor]

    def __contains__(self, part: str) -> bool:
        return f"{self.name}.{part}" in self.tensors

    def error(self, part: str, problem: str) -> FileFormatError:
        """Returns the error for one of its tensors."""
        return FileFormatError(self.source, f"tensor {self.name}.{part}", problem, DOWNLOAD_AGAIN)

    def find(self, part: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> StoredTensor:
        """Returns one of its tensors, unread.

        Args:
          part: the last part of the tensor's name.
          dtypes: the safetensors dtypes that it may have.
          shape: the shape that it must have; `None` allows any size, or any shape.

        Raises:
          FileFormatError: the tensor is missing, or has another dtype or shape.
        """
        tensor = self.tensors.get(f"{self.name}.{part}")
        if tensor is None:
            raise self.error(part, "is missing, but the other tensors of the quantized weight exist")
        if tensor.dtype not in dtypes:
            raise self.error(part, f"expected {' or '.join(dtypes)}, got {tensor.dtype}")
        sizes = tensor.shape if shape is None else shape
        if len(tensor.shape) != len(sizes) or any(a not in (b, None) for a, b in zip(sizes, tensor.shape, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in sizes)
            raise self.error(part, f"expected the shape ({expected}), got {tensor.shape}")
        return tensor

    def read(self, part: str) -> np.ndarray:
        """Reads one of its tensors, which `find` has checked."""
        with reading(self.source, f"tensor {self.name}.{part}"):
            return self.tensors[f"{self.name}.{part}"].read_stored()

    def read_scale(self, part: str) -> np.ndarray:
        """Reads scales as 16-bit or 32-bit floats.

        Raises:
          FileFormatError: one is NaN or infinite.
        """
        scale = self.read(part)
        wide = scale.astype(np.float32)
        if not np.isfinite(wide).all():
            raise self.error(part, "holds NaN or infinite values, so the file is corrupted")
        return wide if scale.dtype.itemsize == 1 else scale

    def read_groups(self, part: str, inputs: int, groups: int) -> np.ndarray | None:
        """Reads the group of each input.

        Returns:
          The groups; `None` if they are equal runs of inputs, in order.

        Raises:
          FileFormatError: an input belongs to a group that does not exist.
        """
        found = self.read(part)
        if found.size and not 0 <= found.min() <= found.max() < groups:
            problem = f"expected indices of {groups} groups, got values from {found.min()} to {found.max()}"
            raise self.error(part, problem)
        return None if inputs % groups == 0 and np.array_equal(found, runs(inputs, inputs // groups)) else found


@dataclasses.dataclass(frozen=True)
class Layout:
    """Describes one way to store a weight in several tensors.

    Attributes:
      first: the last part of the name of a tensor that only this layout has.
      parts: the last parts of the names of the other tensors.
      read: returns the unread weight, given its module and the contents of `quantization_config`.
      weight: the last part of the weight's name.
    """

    first: str
    parts: tuple[str, ...]
    read: Callable[[Module, Mapping[str, Any]], LazyTensor]
    weight: str = "weight"


def runs(inputs: int, size: int) -> np.ndarray:
    """Returns the group of each input, where each group is a run of `size` inputs; the last may be shorter."""
    return np.arange(inputs) // size


def grouped_tensor(shape: Shape, read: Callable[[], tuple[Grouped, np.ndarray | None]]) -> LazyTensor:
    """Returns a weight that can be read as floats or in its quantized form.

    Args:
      shape: `[out, in]`.
      read: reads values, scales and zeros, and the group of each input; `None` for equal runs of inputs, in order.
    """

    def read_floats() -> np.ndarray:
        found, groups = read()
        if groups is None:
            return found.dequantize()
        zero = np.float32(0) if found.zero is None else found.zero[:, groups].astype(np.float32)
        return (found.values.astype(np.float32) - zero) * found.scale[:, groups].astype(np.float32)

    def read_grouped() -> Grouped | None:
        found, groups = read()
        return found if groups is None else None

    return LazyTensor(shape, read_floats, grouped=read_grouped)


def without_zeros(zero: np.ndarray) -> np.ndarray | None:
    """Returns the zeros for `Grouped`: `None` if all are 0."""
    return np.ascontiguousarray(zero) if zero.any() else None


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks the numbers in rows of words to int8, and subtracts the middle, `2**(bits - 1)`.

    Args:
      words: `[n, m]`, int32 or uint32.
      bits: the bits of each number, 4 (eight per word) or 8.
    """
    octets = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view(np.uint8)
    numbers = octets if bits == 8 else np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(words), -1)
    return (numbers - np.uint8(1 << bits - 1)).view(np.int8)


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Packs numbers of at least `-2**(bits - 1)` into rows of int32 words that `unpack` reads.

    Args:
      values: `[n, m]`, int8; a word holds `32 // bits` of them, which must divide `m`.
      bits: the bits of each number, 4 or 8.
    """
    octets = values.view(np.uint8) + np.uint8(1 << bits - 1)
    if bits == 4:
        octets = octets[:, ::2] | octets[:, 1::2] << 4
    return np.ascontiguousarray(octets).view("<i4")
