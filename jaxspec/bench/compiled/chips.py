"""Gives the sizes of chips."""

import dataclasses
from typing import Self


@dataclasses.dataclass(frozen=True)
class Chip:
    """Gives the sizes of one chip of a TPU generation or one GPU, or of one device, where a chip is several.

    Attributes:
      memory: bytes of main memory.
      bandwidth: bytes of it that can be read in a second.
      clock: cycles a second.
    """

    memory: int
    bandwidth: float
    clock: float

    def part(self, count: int) -> Self:
        """Returns one of the `count` devices of a chip."""
        return dataclasses.replace(self, memory=self.memory // count, bandwidth=self.bandwidth / count)


# TPUs by `device_kind`; of Cloud TPU's documentation.
CHIPS = {
    "TPU v4": Chip(32 * 2**30, 1.228e12, 1.05e9),
    "TPU v5 lite": Chip(16 * 2**30, 0.819e12, 1.5e9),
    "TPU v5": Chip(95 * 2**30, 2.765e12, 1.75e9),
    "TPU v6 lite": Chip(32 * 2**30, 1.64e12, 1.75e9),
    "TPU7x": Chip(192 * 2**30, 7.38e12, 1.9e9),
}
