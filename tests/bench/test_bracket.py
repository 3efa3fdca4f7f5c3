"""Both ends of the time of what was compiled and not run."""

import dataclasses

import pytest

from jaxspec.bench.ahead_of_time import Chip
from jaxspec.bench.compiled.bracket import bracket
from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.bench.compiled.machine_code import Code
from jaxspec.bench.hlo import Instruction, Step

CHIP = Chip(memory=2**30, bandwidth=1e12, clock=1e9)
CONSTANTS = Constants(Range(0.0, 2e-6), Range(0.5e-6, 1e-6), Range(0.5, 1.0), Range(1e-6, 4e-6))


def _step(name, cycles, times=1, moved=0):
    text = f'), backend_config={{"estimated_cycles":"{cycles}"}}'
    return Step(Instruction(name, "fusion", (), (), "", text, False), times, moved)


def test_machine_code_and_waits_are_the_low_end_and_what_is_charged_the_high():
    steps = [_step("small", 1200, times=10), _step("large", 5000)]
    code = {"small": Code(100, 1), "large": Code(3000, 0)}
    found = bracket(steps, code, 0, CHIP, CONSTANTS)
    assert found == pytest.approx((10 * (0.1e-6 + 0.5e-6) + 3e-6, 10 * 1.2e-6 + 5e-6))


def test_bytes_at_the_bandwidth_are_below_and_above_what_nothing_else_is():
    found = bracket([_step("read", 1200, moved=10**9)], {}, 0, CHIP, CONSTANTS)
    assert found == pytest.approx((1e-3, 2e-3))


def test_collectives_come_on_top():
    steps = [_step("read", 1200, moved=10**9)]
    with_them, without = (bracket(steps, {}, count, CHIP, CONSTANTS) for count in (3, 0))
    assert with_them == pytest.approx((without.low + 3e-6, without.high + 12e-6))


def test_a_calibration_narrows_small_operations_alone():
    """Both ends of each small one; the charge of a large one stays, and no end falls below the machine code."""
    measured = dataclasses.replace(CONSTANTS, small_operation=Range(0.3e-6, 0.4e-6))
    steps, code = [_step("small", 1200), _step("large", 5000)], {"large": Code(3000, 0)}
    assert bracket(steps, code, 0, CHIP, measured) == pytest.approx((0.3e-6 + 3e-6, 0.4e-6 + 5e-6))
    assert bracket(steps[:1], {"small": Code(900, 0)}, 0, CHIP, measured) == pytest.approx((0.9e-6, 0.9e-6))
