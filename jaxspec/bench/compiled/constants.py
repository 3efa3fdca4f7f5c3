"""Holds what no compiler says of a TPU: how long small operations, waits, reading and collectives take, as ranges."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple, Self

from jaxspec.core.files import FileFormatError, read_json

_ADVICE = "write it with tpu_scripts/calibrate.sh"


class Range(NamedTuple):
    """Gives the bounds of a number."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Constants:
    """Gives the ranges that a bracket of times is made from; a calibration on a TPU narrows them.

    Attributes:
      small_operation: seconds that an operation takes which the compiler charges 2 us or less for.
      dma_wait: seconds from the start of a small copy from the main memory to its end.
      bandwidth_share: which part of a chip's bandwidth reading reaches; of this the higher is the faster.
      collective: seconds of one collective of few kilobytes.
      source: what the ranges come from, for the report.

    Example:
      >>> from jaxspec.bench.compiled.constants import Constants
      >>> Constants().collective.high
      5e-06
    """

    # Nothing is known: at least its machine code, and at most what the compiler charges. It charges 1.21 us for any,
    # on every generation, and up to 2 us for such as have a little more to do.
    small_operation: Range = dataclasses.field(default=Range(0.0, 2e-6))
    # A stated range: round trips to memory on the chip's package, from that of processors to thrice it.
    dma_wait: Range = dataclasses.field(default=Range(0.3e-6, 1.0e-6))
    # The peak that Cloud TPU's documentation gives, and the most that the compiler itself counts on anywhere: a product
    # that reads a gigabyte is charged as 60 to 85 % of the peak, by generation.
    bandwidth_share: Range = dataclasses.field(default=Range(0.85, 1.0))
    # A stated range: messages of 41 kB on links of tens of gigabytes a second take about 1 us, and several hops.
    collective: Range = dataclasses.field(default=Range(1e-6, 5e-6))
    source: str = "stated, not measured"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a calibration file.

        Args:
          path: a JSON object with `source` and, for each range that was measured, `[low, high]`.

        Raises:
          FileFormatError: there is none, or it does not hold that.
        """
        found = read_json(path, _ADVICE)
        names = [field.name for field in dataclasses.fields(cls) if field.name != "source"]
        source = found.get("source")
        if not isinstance(source, str):
            raise FileFormatError(path, "source", f"expected a string, got {source!r}", _ADVICE)
        return cls(source=source, **{name: _range(path, name, found[name]) for name in names if name in found})

    def as_json(self, **more: Any) -> str:
        """Returns the text of a calibration file, with what else is known of it."""
        return json.dumps(dataclasses.asdict(self) | more, indent=1) + "\n"


def _range(path: Path, name: str, value: Any) -> Range:
    numbers = isinstance(value, list) and len(value) == 2 and all(type(one) in (int, float) for one in value)
    if not numbers or not 0 <= value[0] <= value[1]:
        raise FileFormatError(path, name, f"expected two rising numbers of at least 0, got {value!r}", _ADVICE)
    return Range(*map(float, value))
