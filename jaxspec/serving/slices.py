"""Describes the slices of TPUs that a Kubernetes cluster of Google's has: their hosts, chips and labels."""

import dataclasses
import math
import re
from types import MappingProxyType
from typing import Self


@dataclasses.dataclass(frozen=True)
class Generation:
    """Describes the slices of a generation of TPUs.

    Attributes:
      accelerator: the label of its nodes.
      topologies: the extents of its smaller slices.
      cubes: the most chips of a slice whose three extents are multiples of 4, in rising order; 0 for none.
      devices: the number of JAX's devices in a chip.
    """

    accelerator: str
    topologies: tuple[str, ...]
    cubes: int = 0
    devices: int = 1

    def has(self, topology: str) -> bool:
        """Returns whether there are slices of these extents."""
        if topology in self.topologies:
            return True
        extents = [int(one) for one in topology.split("x")]
        cubes = len(extents) == 3 and sorted(extents) == extents and all(one % 4 == 0 < one for one in extents)
        return cubes and math.prod(extents) <= self.cubes

    @property
    def listed(self) -> str:
        """The extents, as text."""
        cubes = f", and AxBxC of multiples of 4 with A <= B <= C, up to {self.cubes} chips" if self.cubes else ""
        return ", ".join(self.topologies) + cubes


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBOID = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
GENERATIONS = MappingProxyType(
    {
        "v5e": Generation("tpu-v5-lite-podslice", _FLAT),
        "v6e": Generation("tpu-v6e-slice", _FLAT),
        "v5p": Generation("tpu-v5p-slice", _CUBOID, 6144),
        "tpu7x": Generation("tpu7x", ("1x1x1", *_CUBOID), 9216, devices=2),
    }
)


@dataclasses.dataclass(frozen=True)
class Slice:
    """Describes a slice.

    Attributes:
      generation: the name of the generation.
      topology: the extents, as `2x2x2`.

    Example:
        >>> from jaxspec.serving.slices import Slice
        >>> found = Slice.of("tpu7x:2x2x2")
        >>> found.hosts, found.chips_per_host
        (2, 4)
    """

    generation: str
    topology: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads a generation and its extents.

        Args:
          text: such as `v6e:4x4` or `tpu7x:2x2x2`.

        Raises:
          ValueError: there is no such slice.
        """
        generation, _, topology = text.partition(":")
        known = GENERATIONS.get(generation)
        if known is None:
            raise ValueError(
                f"topology must be one of {', '.join(GENERATIONS)} and its extents, such as tpu7x:2x2x2, got {text!r}"
            )
        if not re.fullmatch(r"\d{1,4}(x\d{1,4}){1,2}", topology, re.ASCII) or not known.has(topology):
            raise ValueError(f"{generation} has slices of {known.listed}; got {text!r}, pass {generation}:EXTENTS")
        return cls(generation, topology)

    @property
    def accelerator(self) -> str:
        """The label of its nodes."""
        return GENERATIONS[self.generation].accelerator

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(int(one) for one in self.topology.split("x"))

    @property
    def chips_per_host(self) -> int:
        """The number of chips of each host: 4, but 8 chips in a plane share one, which is the fastest."""
        return self.chips if self.topology in ("1x1", "1x1x1", "2x4") else 4

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.chips // self.chips_per_host

    @property
    def devices(self) -> int:
        """The number of JAX's devices."""
        return self.chips * GENERATIONS[self.generation].devices
