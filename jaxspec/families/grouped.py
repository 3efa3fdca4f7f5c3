"""Holds a weight as quantized checkpoints do: small numbers, with a scale for each group of an output's inputs."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Holds the weight `(values - zero) * scale`, whose groups are equal runs of inputs that follow one another.

    Attributes:
      values: `[*out, in]`: int8, or a float of one byte.
      scale: `[*out, in // group]`: a float of 16 or 32 bits.
      zero: `[*out, in // group]`, int8; `None` where all of it is 0.
      bits: of each value: those of 4 bits are between -8 and 7.

    Example:
      >>> values, scale = np.array([[1, 2, 3, -4]], np.int8), np.array([[0.5, 2.0]], np.float32)
      >>> jaxspec.families.Grouped(values, scale, None, 4).dequantize().tolist()
      [[0.5, 1.0, 6.0, -8.0]]
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int

    def dequantize(self) -> np.ndarray:
        """Returns the weight in float32, each number rounded once."""
        groups = self.values.astype(np.float32).reshape(*self.scale.shape, -1)
        if self.zero is not None:
            groups -= self.zero[..., None]
        groups *= self.scale.astype(np.float32)[..., None]
        return groups.reshape(self.values.shape)


def build_grouped(build: Callable[..., np.ndarray], parts: list[Grouped]) -> Grouped | None:
    """Makes one weight of several, as `ParamMapping.build` does of arrays.

    Args:
      build: moves outputs and leaves the inputs of each where they are.
      parts: what it is made of.

    Returns:
      The weight; `None` if the parts differ in kind or in the number of groups, so that only their floats go together.
    """
    if len({(part.values.dtype, part.scale.shape[-1], part.bits) for part in parts}) > 1:
        return None
    zero = None
    if any(part.zero is not None for part in parts):
        zero = build(*(np.zeros(part.scale.shape, np.int8) if part.zero is None else part.zero for part in parts))
    scale = build(*(part.scale for part in parts))
    return Grouped(build(*(part.values for part in parts)), scale, zero, parts[0].bits)
