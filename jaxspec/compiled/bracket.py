"""Bounds the time of a compiled round or plain step from below and above, without running it.

Neither end is a measurement. Collectives are added to both, at their shortest and at their longest:

    low    all bytes at the chip's bandwidth; or all products at its peak in bfloat16, if that takes longer; or, if the
           machine code is known and takes longer, every operation's code at one word per cycle, with its blocking
           waits at their shortest. Reading and computing overlap fully, and loops inside an operation run once.
    high   the compiled schedule, one operation after another, each for as long as the compiler charges, which is
           1.21 us for any small one on every generation. Prefetches are charged nothing: they go through
           one queue to memory, after the reads of operations, and their users wait for them.

The compiler charges nothing for a Pallas kernel. Here it takes the longer of its machine code and the bytes of its
blocks at the bandwidth. A step of its grid takes at most the longest path through that code, which runs at least once.
Without known machine code, a kernel takes the time to read its blocks, at both ends.

The host takes no part in the loop, and is in neither end.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from jaxspec.compiled.arithmetic import flops
from jaxspec.compiled.devices import Chip
from jaxspec.compiled.hlo import FREE, Instruction, Program
from jaxspec.io.files import FileFormatError, read_json

# The most that the compiler charges for a small operation, in seconds: 1.21 us, or little more.
SMALL = 2e-6
_ADVICE = "write it with tpu_scripts/calibrate.sh"


class Range(NamedTuple):
    """Holds the bounds of a number."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Constants:
    """Holds the ranges that a bracket of times is made from; a calibration on a TPU narrows them.

    Attributes:
      small_operation: seconds of an operation for which the compiler charges 2 us or less.
      dma_wait: seconds from start to end of a small copy from main memory.
      bandwidth_share: fraction of a chip's bandwidth that reads reach; here the higher end is the faster.
      collective: seconds of one collective of a few kilobytes.
      source: origin of the ranges, for the report.

    Example:
      >>> from jaxspec.compiled.bracket import Constants
      >>> Constants().collective.high
      5e-06
    """

    # Unknown: at least the machine code, and at most the compiler's charge, which is 1.21 us for any,
    # on every generation, and up to 2 us for those with a little more work.
    small_operation: Range = dataclasses.field(default=Range(0.0, 2e-6))
    # A stated range: round trips to memory on the chip's package, from one to three times those of processors.
    dma_wait: Range = dataclasses.field(default=Range(0.3e-6, 1.0e-6))
    # The peak in Cloud TPU's documentation, and the most that the compiler assumes: it charges a product that reads
    # a gigabyte as 60 to 85 % of the peak, depending on the generation.
    bandwidth_share: Range = dataclasses.field(default=Range(0.85, 1.0))
    # A stated range: messages of 41 kB on links of tens of gigabytes a second take about 1 us, and several hops.
    collective: Range = dataclasses.field(default=Range(1e-6, 5e-6))
    source: str = "stated, not measured"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a calibration file.

        Args:
          path: path of a JSON object with `source` and, for each measured range, `[low, high]`.

        Raises:
          FileFormatError: if the file is missing or has another format.
        """
        found = read_json(path, _ADVICE)
        names = [field.name for field in dataclasses.fields(cls) if field.name != "source"]
        source = found.get("source")
        if not isinstance(source, str):
            raise FileFormatError(path, "source", f"expected a string, got {source!r}", _ADVICE)
        return cls(source=source, **{name: _range(path, name, found[name]) for name in names if name in found})

    def as_json(self, **more: Any) -> str:
        """Returns the text of a calibration file, with additional fields."""
        return json.dumps(dataclasses.asdict(self) | more, indent=1) + "\n"


def _range(path: Path, name: str, value: Any) -> Range:
    numbers = isinstance(value, list) and len(value) == 2 and all(type(one) in (int, float) for one in value)
    if not numbers or not 0 <= value[0] <= value[1]:
        raise FileFormatError(path, name, f"expected two rising numbers of at least 0, got {value!r}", _ADVICE)
    return Range(*map(float, value))


class Code(NamedTuple):
    """Summarizes the machine code of an operation.

    Attributes:
      bundles: number of instruction words on its longest path.
      waits: number of waits for its own copies from or to main memory; several at once count as one.
    """

    bundles: float
    waits: int


_NONE = Code(0, 0)


@dataclasses.dataclass(frozen=True)
class Bracket:
    """Bounds the times of a program on a device.

    Attributes:
      program: compiled program.
      trips: function that returns the trip count of a loop whose count is not in the program.
      code: known machine code of instructions, by name; without it low ends count only bytes.
      chip: sizes of the device.
      constants: ranges that the compiler does not state.
    """

    program: Program
    trips: Callable[[Instruction], int]
    code: Mapping[str, Code]
    chip: Chip
    constants: Constants

    def seconds(self, computation: str, collectives: int) -> Range:
        """Returns the least and the most seconds of a computation with a given number of collectives."""
        steps = list(self.program.steps(computation, self.trips))
        low = sum(self._operation(step.instruction, step.bytes).low * step.times for step in steps)
        fast = self._reading(sum(step.bytes * step.times for step in steps)).low
        sums = sum(flops(self.program, step.instruction, step.inside) * step.times for step in steps)
        fast = max(fast, sums / self.chip.flops)
        wait = self.constants.collective
        return Range(max(low, fast) + collectives * wait.low, self._scheduled(computation) + collectives * wait.high)

    def _scheduled(self, computation: str) -> float:
        """Returns the seconds of a computation's schedule at the compiler's charges, with one queue to memory."""
        now, free, inside = 0.0, 0.0, self.program.computations[computation]
        arrives: dict[str, float] = {}
        for one in inside.values():
            body, count = self._body(one)
            if body:
                steps = self.program.steps(body, self.trips)
                free = max(free, now) + self._reading(count * sum(step.bytes * step.times for step in steps)).high
                now += count * self._scheduled(body)
            elif one.opcode in ("copy-start", "slice-start"):
                arrives[one.name] = free = max(free, now) + self._reading(self.program.moved(one, inside)).high
            elif one.opcode in ("copy-done", "slice-done"):
                now = max(now, arrives.get(one.operands[0], now))
            elif one.opcode not in FREE:
                moved = self.program.moved(one, inside)
                free = max(free, now) + self._reading(moved).high if moved else free
                now = max(now + self._operation(one, moved).high, free if moved else now)
        return now

    def _body(self, one: Instruction) -> tuple[str, int]:
        """Returns the computation that an instruction runs, or an empty name, and how often it runs."""
        if one.opcode == "while":
            count = self.program.trips(one)
            return one.computation("body"), self.trips(one) if count is None else count
        if one.opcode == "conditional":
            return self.program.branch(one, self.trips), 1
        return (one.computation("to_apply"), 1) if one.opcode == "call" else ("", 0)

    def _reading(self, moved: int) -> Range:
        """Returns the seconds of reading `moved` bytes."""
        share = self.constants.bandwidth_share
        return Range(moved / (self.chip.bandwidth * share.high), moved / (self.chip.bandwidth * share.low))

    def _operation(self, one: Instruction, moved: int) -> Range:
        code = self.code.get(one.name, _NONE)
        charged, small, wait = one.cycles / self.chip.clock, self.constants.small_operation, self.constants.dma_wait
        words = code.bundles / self.chip.clock
        if (kernel := self.program.kernel(one)) is not None:
            reading, waits = self._reading(moved), code.waits * wait.high
            return Range(max(words, reading.low), max(words * kernel.steps, reading.high) + waits)
        low = words + code.waits * wait.low
        if 0 < charged <= SMALL:
            low, charged = max(low, small.low), min(charged, small.high)
        return Range(low, max(low, charged))
