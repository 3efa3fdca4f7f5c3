"""Bounds the time of a round, or plain step, that was compiled and not run, from below and above.

Neither end is a measurement. Both take the larger of two sums, and add the collectives:

    low    every operation's machine code at one word a cycle, and the blocking waits in it at their shortest, against
           all bytes at the chip's bandwidth; collectives at their shortest
    high   every operation as the compiler charges it, which gives 1.21 us to any small one on every generation, against
           all bytes at the chip's bandwidth; collectives at their longest

The low end takes reading and computing to overlap fully, and loops inside an operation to run once; the high end hides
nothing behind anything. A Pallas kernel, which the compiler charges nothing, takes at both ends the longer of its
machine code, once for each step of its grid, and the bytes of its blocks at the bandwidth.

The host is in neither: the loop has none.
"""

from collections.abc import Iterable, Mapping

from jaxspec.bench.ahead_of_time import Chip
from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.bench.compiled.kernels import kernel_of
from jaxspec.bench.compiled.machine_code import Code
from jaxspec.bench.hlo import Step

# What the compiler charges for operations that are small, in seconds, is at most this: 1.21 us, or little more.
SMALL = 2e-6
_NONE = Code(0, 0)


def bracket(
    steps: Iterable[Step], code: Mapping[str, Code], collectives: int, chip: Chip, constants: Constants
) -> Range:
    """Returns the seconds that a round takes at least and at most.

    Args:
      steps: all instructions that it runs.
      code: their machine code by name, as far as it is known; without it the low end is that of the bytes.
      collectives: how many collectives it has.
      chip: the device.
      constants: the ranges of what no compiler says.
    """
    low, high, moved = 0.0, 0.0, 0
    for step in steps:
        least, most = _operation(step, code.get(step.instruction.name, _NONE), chip, constants)
        low += least * step.times
        high += most * step.times
        moved += step.bytes * step.times
    slow, fast = (moved / (chip.bandwidth * share) for share in constants.bandwidth_share)
    together = Range(max(low, fast), max(high, slow))
    wait = constants.collective
    return Range(together.low + collectives * wait.low, together.high + collectives * wait.high)


def _operation(step: Step, code: Code, chip: Chip, constants: Constants) -> Range:
    """Returns the seconds that one operation takes at least and at most, without what it reads."""
    charged, small, wait = step.instruction.cycles / chip.clock, constants.small_operation, constants.dma_wait
    words = code.bundles / chip.clock
    if (kernel := kernel_of(step.instruction.text)) is not None:
        words *= kernel.steps
        slow, fast = (step.bytes / (chip.bandwidth * share) for share in constants.bandwidth_share)
        return Range(max(words, fast), max(words, slow) + code.waits * wait.high)
    low = words + code.waits * wait.low
    if 0 < charged <= SMALL:
        low, charged = max(low, small.low), min(charged, small.high)
    return Range(low, max(low, charged))
