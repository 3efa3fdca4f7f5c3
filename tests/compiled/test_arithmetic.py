"""The arithmetic of products, read from compiled programs: dots, convolutions over padding, and fusions of them."""

import pytest

from jaxspec.compiled.arithmetic import flops
from jaxspec.compiled.bracket import Bracket, Constants, Range
from jaxspec.compiled.devices import Chip
from jaxspec.compiled.hlo import Program

HEAD = """HloModule jit_f

%fused (x: bf16[32,4096], w: bf16[3072,2,4096]) -> bf16[32,2,3072] {
  %x = bf16[32,4096]{1,0} parameter(0)
  %w = bf16[3072,2,4096]{2,1,0} parameter(1)
  %wide = bf16[32,4096,1]{1,0,2} bitcast(%x)
  ROOT %product = bf16[32,2,3072]{2,0,1} convolution(%wide, %w), window={size=2 pad=1_1 rhs_reversal=1}, \
dim_labels=bf0_o0i->b0f
}

ENTRY %main (x: bf16[32,4096], w: bf16[3072,2,4096]) -> bf16[32,2,3072] {
  %x = bf16[32,4096]{1,0:S(1)} parameter(0)
  %w = bf16[3072,2,4096]{2,1,0:S(1)} parameter(1)
"""
FUSION = "  ROOT %out = bf16[32,2,3072]{2,0,1:S(1)} fusion(%x, %w), kind=kOutput, calls=%fused\n"
DOT = "  ROOT %out = f32[32,8]{1,0:S(1)} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
OTHER = "  %y = bf16[8,4096]{1,0:S(1)} parameter(2)\n"
STRIDED = """  %y = bf16[2,16,5]{2,1,0} parameter(2)
  %z = bf16[3,16,7]{2,1,0} parameter(3)
  ROOT %out = bf16[2,7,4]{2,1,0} convolution(%y, %z), window={size=3 stride=2 pad=2_2}, dim_labels=bf0_0io->bf0
"""


def _program(body):
    return Program(HEAD + body + "}\n")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (FUSION, 2 * 32 * 2 * 3072 * 4096),  # of a window's two places, one lies in the padding
        (OTHER + DOT, 2 * 32 * 8 * 4096),
        (STRIDED, 2 * 2 * 7 * 16 * (1 + 3 + 3 + 1)),  # outputs at -2, 0, 2 and 4
        ("  ROOT %out = bf16[32,4096]{1,0} negate(%x)\n", 0),
    ],
    ids=["fusion", "dot", "strided", "no product"],
)
def test_products_are_counted(body, expected):
    program = _program(body)
    assert flops(program, program.computations["main"]["out"], program.computations["main"]) == expected


def test_a_low_end_is_at_least_the_arithmetic():
    """All arrays lie on the chip, so that nothing is read."""
    peak, collectives = 1e12, Constants(collective=Range(0.0, 0.0))
    chip = Chip(memory=2**30, bandwidth=1e12, clock=1e9, flops=peak)
    time = Bracket(_program(FUSION), lambda loop: 1, {}, chip, collectives).seconds("main", 0)
    assert time.low == pytest.approx(2 * 32 * 2 * 3072 * 4096 / peak)
    assert chip.part(2).flops == peak / 2
