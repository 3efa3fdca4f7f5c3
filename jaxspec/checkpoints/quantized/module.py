"""Finds and checks the tensors that one quantized weight is made of."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoints.stored_tensor import StoredTensor
from jaxspec.core.files import DOWNLOAD_AGAIN, FileFormatError, reading
from jaxspec.families.base import LazyTensor, Shape
from jaxspec.families.grouped import Grouped

SCALES = ("F16", "BF16", "F32", "F8_E8M0")


@dataclasses.dataclass(frozen=True)
class Module:
    """Finds the tensors of one weight among those of a checkpoint.

    Attributes:
      source: the folder, for error messages.
      name: what the names of its tensors begin with.
      tensors: all tensors of the checkpoint.
    """

    source: Path
    name: str
    tensors: Mapping[str, StoredTensor]

    def __contains__(self, part: str) -> bool:
        return f"{self.name}.{part}" in self.tensors

    def error(self, part: str, problem: str) -> FileFormatError:
        """Returns the error of one of its tensors."""
        return FileFormatError(self.source, f"tensor {self.name}.{part}", problem, DOWNLOAD_AGAIN)

    def find(self, part: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> StoredTensor:
        """Returns one of its tensors, not yet read.

        Args:
          part: the last part of its name.
          dtypes: the types that it may have, by safetensors' names.
          shape: what it must have; `None` stands for any size, or for any shape.

        Raises:
          FileFormatError: there is none, or it has another type or shape.
        """
        tensor = self.tensors.get(f"{self.name}.{part}")
        if tensor is None:
            raise self.error(part, "is missing, and the other tensors of the quantized weight are there")
        if tensor.dtype not in dtypes:
            raise self.error(part, f"expected {' or '.join(dtypes)}, got {tensor.dtype}")
        sizes = tensor.shape if shape is None else shape
        if len(tensor.shape) != len(sizes) or any(a not in (b, None) for a, b in zip(sizes, tensor.shape, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in sizes)
            raise self.error(part, f"expected the shape ({expected}), got {tensor.shape}")
        return tensor

    def read(self, part: str) -> np.ndarray:
        """Reads one of its tensors, which `find` has found."""
        with reading(self.source, f"tensor {self.name}.{part}"):
            return self.tensors[f"{self.name}.{part}"].read_stored()

    def read_scale(self, part: str) -> np.ndarray:
        """Reads scales, in a float of 16 or 32 bits.

        Raises:
          FileFormatError: one is NaN or infinite.
        """
        scale = self.read(part)
        wide = scale.astype(np.float32)
        if not np.isfinite(wide).all():
            raise self.error(part, "holds NaN or infinite values, so the file is corrupted")
        return wide if scale.dtype.itemsize == 1 else scale

    def read_groups(self, part: str, inputs: int, groups: int) -> np.ndarray | None:
        """Reads which group each input belongs to.

        Returns:
          The groups; `None` if they are equal runs of inputs, in order.

        Raises:
          FileFormatError: there are inputs of a group that there is not.
        """
        found = self.read(part)
        if found.size and not 0 <= found.min() <= found.max() < groups:
            problem = f"expected the numbers of {groups} groups, got some from {found.min()} to {found.max()}"
            raise self.error(part, problem)
        return None if inputs % groups == 0 and np.array_equal(found, runs(inputs, inputs // groups)) else found


@dataclasses.dataclass(frozen=True)
class Layout:
    """Describes one way to hold a weight in several tensors.

    Attributes:
      first: the last part of the name of a tensor that only weights of this layout have.
      parts: those of the tensors that hold the rest of it.
      read: returns the weight, not yet read, given its module and the contents of `quantization_config`.
    """

    first: str
    parts: tuple[str, ...]
    read: Callable[[Module, Mapping[str, Any]], LazyTensor]


def runs(inputs: int, size: int) -> np.ndarray:
    """Returns the group of each input, where a group is a run of `size` inputs; the last may be shorter."""
    return np.arange(inputs) // size


def grouped_tensor(shape: Shape, read: Callable[[], tuple[Grouped, np.ndarray | None]]) -> LazyTensor:
    """Returns a weight that is read as floats or as it is quantized.

    Args:
      shape: `[out, in]`.
      read: reads values, scales and zeros, and the group of each input; nothing for equal runs of inputs, in order.
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
    """Returns zeros as `Grouped` holds them: nothing where all are 0."""
    return np.ascontiguousarray(zero) if zero.any() else None
