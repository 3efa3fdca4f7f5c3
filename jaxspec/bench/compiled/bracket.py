"""Bounds the time of a round, or plain step, that was compiled and not run, from below and above.

Neither end is a measurement. Collectives come on top of both, at their shortest and at their longest:

    low    every operation's machine code at one word a cycle, and the blocking waits in it at their shortest; or, if
           that is more, all bytes at the chip's bandwidth. Reading and computing overlap fully, and loops inside an
           operation run once.
    high   the compiled schedule, one operation after the other, each for as long as the compiler charges it, which
           gives 1.21 us to any small one on every generation. What is fetched ahead is charged nothing: it goes through
           one queue to memory, behind what the operations read, and its user waits for it.

A Pallas kernel, which the compiler charges nothing either, takes the longer of its machine code and the bytes of its
blocks at the bandwidth. A step of its grid takes at most the longest path through that code; at least it is run once.

The host is in neither: the loop has none.
"""

import dataclasses
from collections.abc import Callable, Mapping

from jaxspec.bench.ahead_of_time import Chip
from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.bench.compiled.machine_code import Code
from jaxspec.bench.hlo import FREE, Instruction, Program

# What the compiler charges for operations that are small, in seconds, is at most this: 1.21 us, or little more.
SMALL = 2e-6
_NONE = Code(0, 0)


@dataclasses.dataclass(frozen=True)
class Bracket:
    """Times a program on a device.

    Attributes:
      program: the compiled program.
      trips: says how often a loop runs that the program does not say of.
      code: the machine code of its instructions by name, as far as it is known; without it low ends are of bytes.
      chip: the device.
      constants: the ranges of what no compiler says.
    """

    program: Program
    trips: Callable[[Instruction], int]
    code: Mapping[str, Code]
    chip: Chip
    constants: Constants

    def seconds(self, computation: str, collectives: int) -> Range:
        """Returns the seconds that a computation takes at least and at most, with so many collectives."""
        steps = list(self.program.steps(computation, self.trips))
        low = sum(self._operation(step.instruction, step.bytes).low * step.times for step in steps)
        fast = self._reading(sum(step.bytes * step.times for step in steps)).low
        wait = self.constants.collective
        return Range(max(low, fast) + collectives * wait.low, self._scheduled(computation) + collectives * wait.high)

    def _scheduled(self, computation: str) -> float:
        """Returns the seconds of a computation's schedule as the compiler charges it, with one queue to memory."""
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
        """Returns the computation that an instruction runs, and how often; no name if it runs none."""
        if one.opcode == "while":
            count = self.program.trips(one)
            return one.computation("body"), self.trips(one) if count is None else count
        if one.opcode == "conditional":
            return self.program.branch(one, self.trips), 1
        return (one.computation("to_apply"), 1) if one.opcode == "call" else ("", 0)

    def _reading(self, moved: int) -> Range:
        """Returns the seconds that so many bytes take."""
        share = self.constants.bandwidth_share
        return Range(moved / (self.chip.bandwidth * share.high), moved / (self.chip.bandwidth * share.low))

    def _operation(self, one: Instruction, moved: int) -> Range:
        """Returns the seconds that one operation takes at least and at most."""
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
