"""Lower and upper bounds on the time of a program that was compiled and not run."""

import dataclasses
import json
from types import MappingProxyType

import pytest

from jaxspec.compiled.bracket import Bracket, Code, Constants, Range
from jaxspec.compiled.devices import Chip
from jaxspec.compiled.hlo import Program
from jaxspec.io.files import FileFormatError

CHIP = Chip(memory=2**30, bandwidth=1e12, clock=1e9)
CONSTANTS = Constants(Range(0.0, 2e-6), Range(0.5e-6, 1e-6), Range(0.5, 1.0), Range(1e-6, 4e-6))


HEAD = """HloModule jit_f

ENTRY %main (a: f32[8], w: f32[250000]) -> f32[8] {
  %a = f32[8]{0:S(1)} parameter(0)
  %w = f32[250000]{0} parameter(1)
"""
SMALL = '  %small = f32[8]{0:S(1)} negate(%a), backend_config={"estimated_cycles":"1200"}\n'
LARGE = '  ROOT %large = f32[8]{0:S(1)} negate(%a), backend_config={"estimated_cycles":"5000"}\n'
FETCH = """  %start = (f32[250000]{0:S(1)}, f32[250000]{0}, u32[]) copy-start(%w)
  OTHER  %done = f32[250000]{0:S(1)} copy-done(%start)
"""


def _seconds(body, code=MappingProxyType({}), collectives=0, constants=CONSTANTS):
    program = Program(HEAD + body + "}\n")
    return Bracket(program, lambda loop: 10, code, CHIP, constants).seconds("main", collectives)


def test_machine_code_and_waits_are_the_low_end_and_what_is_charged_the_high():
    code = {"small": Code(100, 1), "large": Code(3000, 0)}
    assert _seconds(SMALL + LARGE, code) == pytest.approx((0.1e-6 + 0.5e-6 + 3e-6, 1.2e-6 + 5e-6))


def test_all_bytes_at_the_bandwidth_are_below_what_nothing_else_is():
    read = LARGE.replace("negate(%a)", "reduce(%w)")
    assert _seconds(read) == pytest.approx((1e-6, 5e-6))
    assert _seconds(read.replace("5000", "1500")) == pytest.approx((1e-6, 2e-6))  # at half the bandwidth


def test_what_is_fetched_ahead_is_waited_for_at_the_high_end_alone():
    """A megabyte takes 2 us at half the bandwidth, of which the operation between covers 1.2."""
    alone, behind = (_seconds(FETCH.replace("OTHER", other) + LARGE) for other in ("\n", SMALL))
    assert alone == pytest.approx((1e-6, 2e-6 + 5e-6))
    assert behind == pytest.approx((1e-6, 2e-6 + 5e-6))
    twice = _seconds(FETCH.replace("OTHER", LARGE.replace("ROOT %large", "%other")) + LARGE)
    assert twice.high == pytest.approx(5e-6 + 5e-6)


def test_a_loop_takes_its_trips():
    loop = """  %while = f32[8]{0} while(%a), condition=%none, body=%body
}

%body (b: f32[8]) -> f32[8] {
  %a = f32[8]{0:S(1)} parameter(0)
"""
    assert _seconds(loop + LARGE).high == pytest.approx(10 * 5e-6)


def test_collectives_come_on_top():
    with_them, without = (_seconds(LARGE, collectives=count) for count in (3, 0))
    assert with_them == pytest.approx((without.low + 3e-6, without.high + 12e-6))


def test_a_calibration_narrows_small_operations_alone():
    """Both ends of each small one; the charge of a large one stays, and no end falls below the machine code."""
    measured = dataclasses.replace(CONSTANTS, small_operation=Range(0.3e-6, 0.4e-6))
    code = {"large": Code(3000, 0)}
    assert _seconds(SMALL + LARGE, code, constants=measured) == pytest.approx((0.3e-6 + 3e-6, 0.4e-6 + 5e-6))
    code = {"small": Code(900, 0)}
    assert _seconds(SMALL, code, constants=measured) == pytest.approx((0.9e-6, 0.9e-6))


def test_what_was_not_measured_stays_as_it_is_stated(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"source": "TPU v5 lite", "dma_wait": [4e-7, 5e-7], "device": "any"}))
    found, stated = Constants.load(path), Constants()
    assert found == Constants(dma_wait=Range(4e-7, 5e-7), source="TPU v5 lite")
    assert found.collective == stated.collective
    path.write_text(found.as_json(device="any"))
    assert Constants.load(path) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "source: expected a string, got None; write it with tpu_scripts/calibrate.sh"),
        ('{"source": "x", "collective": [2, 1]}', r"collective: expected two rising numbers of at least 0, got \[2, 1"),
        ('{"source": "x", "collective": 1}', "collective: expected two rising numbers"),
        ("no", "write it with tpu_scripts/calibrate.sh"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, text, problem):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=problem):
        Constants.load(path)
