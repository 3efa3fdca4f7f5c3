"""The bytes that a Pallas kernel moves, by its blocks."""

import base64
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxspec.compiled.bracket import Bracket, Code, Constants, Range
from jaxspec.compiled.devices import Chip
from jaxspec.compiled.hlo import Program, kernel_of


def _body(length, x, w, out):
    del length
    out[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32)


def _kernel(length, x, w, steps=4):
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(steps if isinstance(steps, int) else length[0],),
        in_specs=[pl.BlockSpec((8, 512), lambda i, n: (0, 0)), pl.BlockSpec((512, 128), lambda i, n: (0, i))],
        out_specs=pl.BlockSpec((8, 128), lambda i, n: (0, i)),
    )
    estimate = pl.CostEstimate(flops=1, bytes_accessed=123, transcendentals=0)
    shape = jax.ShapeDtypeStruct((8, 512), jnp.float32)
    return pl.pallas_call(_body, grid_spec=grid, out_shape=shape, cost_estimate=estimate)(length, x, w)


def _attributes(steps=4):
    """Returns the attributes of a kernel call whose last operand is eight times as wide as its blocks reach."""
    given = [jax.ShapeDtypeStruct(*each) for each in (((1,), jnp.int32), ((8, 512), jnp.bfloat16))]
    wide = jax.ShapeDtypeStruct((512, 4096), jnp.bfloat16)
    run = functools.partial(_kernel, steps=steps)
    text = jax.jit(run).trace(*given, wide).lower(lowering_platforms=("tpu",)).as_text()
    config = re.search(r'backend_config = "((?:[^"\\]|\\.)*)"', text)[1]
    config = re.sub(r"\\([0-9A-F]{2})", lambda escaped: chr(int(escaped[1], 16)), config).replace("\n", "")
    return f'), custom_call_target="tpu_custom_call", backend_config={config}'


@pytest.fixture(scope="module")
def attributes():
    return _attributes()


def test_a_step_reads_no_more_than_its_blocks(attributes):
    """Nor more bytes of an operand than it has; its author's estimate is ignored where blocks give the number."""
    kernel = kernel_of(attributes)
    assert (kernel.steps, kernel.scalars, kernel.blocks, kernel.stated) == (4, 1, (4096, 65536, 1024), 123)
    x, w, out = (2 * 8 * 512, 16), (2 * 512 * 4096, 16), (4 * 8 * 512, 32)
    assert kernel.bytes([(4, 32), x, w, out]) == 2 * 8 * 512 + 4 * 2 * 512 * 128 + 4 * 8 * 512
    copies = dataclasses.replace(kernel, blocks=(4096, None, 1024))
    assert copies.bytes([(4, 32), x, w, out]) == 2 * 8 * 512 + 4 * 8 * 512
    assert dataclasses.replace(copies, stated=None).bytes([(4, 32), x, w, out]) == x[0] + w[0] + out[0]
    assert kernel_of(attributes.replace("tpu_custom_call", "Sharding")) is None


def test_a_grid_that_depends_on_data_is_counted_as_the_caller_says():
    """Its bound is the first operand of the call: the blocks belong to the same operands as before."""
    kernel = kernel_of(_attributes(jnp.int32(0)), unknown=7)
    assert (kernel.steps, kernel.scalars) == (7, 2)
    x, w, out = (2 * 8 * 512, 16), (2 * 512 * 4096, 16), (4 * 8 * 512, 32)
    assert kernel.bytes([(4, 32), (4, 32), x, w, out]) == 2 * 8 * 512 + 7 * 2 * 512 * 128 + 4 * 8 * 512


def test_a_kernel_takes_its_code_or_the_reading_of_its_blocks(attributes):
    text = f"""HloModule jit_f

ENTRY %main (n: s32[1], x: bf16[8,512], w: bf16[512,4096]) -> f32[8,512] {{
  %n = s32[1]{{0}} parameter(0)
  %x = bf16[8,512]{{1,0:S(1)}} parameter(1)
  %w = bf16[512,4096]{{1,0}} parameter(2)
  ROOT %call = f32[8,512]{{1,0:S(1)}} custom-call(%n, %x, %w{attributes}
}}
"""
    program = Program(text)
    (step,) = program.steps(program.entry, lambda loop: 1)
    assert step.bytes == 4 * 2 * 512 * 128  # the rest is on the chip
    chip = Chip(memory=2**30, bandwidth=1e12, clock=1e9)
    reading = step.bytes / 1e12
    for words, low, high in ((10, reading, reading), (500, reading, 2e-6), (3000, 3e-6, 12e-6)):
        constants = Constants(bandwidth_share=Range(1.0, 1.0))
        found = Bracket(program, lambda loop: 1, {"call": Code(words, 0)}, chip, constants).seconds("main", 0)
        assert found == pytest.approx((low, high))


def test_a_kernel_of_the_compilers_own_is_no_mistake():
    """Its code has dialects that JAX's kernels lack; its operands then count whole."""
    body = base64.b64encode(b'module { "func.func"() ({}) : () -> () func.func @main() { return } }').decode()
    assert kernel_of(f'custom_call_target="tpu_custom_call", backend_config={{"body": "{body}"}}') is None
