"""Reading a compiled program: bytes, loops, collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxspec.compiled.hlo import Array, Program

# Shortened from what the TPU compiler writes.
TEXT = """HloModule jit_f, is_scheduled=true

%sliced (param_0: bf16[4,256,128], param_1: s32[]) -> bf16[256,128] {
  %param_0 = bf16[4,256,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %look = bf16[4,256,128]{2,1,0:T(8,128)(2,1)} fusion(%param_0), kind=kLoop, calls=%retiled
  %param_1 = s32[]{:T(128)} parameter(1)
  %dynamic-slice.1 = bf16[1,256,128]{2,1,0} dynamic-slice(%look, %param_1), dynamic_slice_sizes={1,256,128}
  ROOT %bitcast.1 = bf16[256,128]{1,0} bitcast(%dynamic-slice.1)
}

%retiled (input: bf16[4,256,128]) -> bf16[4,256,128] {
  %input = bf16[4,256,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  ROOT %copy.9 = bf16[4,256,128]{2,1,0:T(16,128)(2,1)} copy(%input)
}

%updated (param_0: f32[1024], param_1: f32[8], param_2: s32[]) -> f32[1024] {
  %param_0 = f32[1024]{0} parameter(0)
  %param_1 = f32[8]{0} parameter(1)
  %param_2 = s32[] parameter(2)
  ROOT %dynamic-update-slice.1 = f32[1024]{0} dynamic-update-slice(%param_0, %param_1, %param_2)
}

%inner (p: (s32[], f32[64])) -> (s32[], f32[64]) {
  %p = (s32[], f32[64]{0}) parameter(0)
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %negate.1 = f32[64]{0} negate(%x), metadata={op_name="jit(f)/a/while/body/neg"}
  ROOT %tuple.1 = (s32[], f32[64]{0}) tuple(%p, %negate.1)
}

%small (p: (s32[], f32[64])) -> f32[64] {
  %p = (s32[], f32[64]{0}) parameter(0)
  %s0 = f32[] constant(0)
  %s1 = f32[] negate(%s0)
  %s2 = f32[] negate(%s1)
  ROOT %s3 = f32[64]{0} broadcast(%s2)
}

%condition (p: (s32[], f32[64])) -> pred[] {
  ROOT %true = pred[] constant(true)
}

ENTRY %main (a: bf16[4,256,128], b: f32[1024], c: f32[8], i: s32[], d: (s32[], f32[64])) -> f32[1024] {
  %a = bf16[4,256,128]{2,1,0} parameter(0)
  %b = f32[1024]{0} parameter(1)
  %c = f32[8]{0:T(128)S(1)} parameter(2)
  %i = s32[] parameter(3)
  %d = (s32[], f32[64]{0}) parameter(4)
  %one = bf16[256,128]{1,0:T(8,128)S(1)} fusion(%a, %i), calls=%sliced, backend_config={"estimated_cycles":"700"}
  %two = f32[1024]{0} fusion(%b, %c, %i), kind=kLoop, calls=%updated
  %copy-start.1 = (f32[1024]{0}, f32[1024]{0:S(1)}, u32[]{:S(2)}) copy-start(%two)
  %copy-done.1 = f32[1024]{0:S(1)} copy-done(%copy-start.1)
  %while.1 = (s32[], /*index=1*/f32[64]{0}) while(%d), condition=%condition, body=%inner, metadata={op_name="f/a/while"}
  %while.2 = (s32[], f32[64]{0}) while(%d), condition=%condition, body=%inner, x={"known_trip_count":{"n":"5"}}
  %all-reduce.1 = f32[8]{0} all-reduce(%c), replica_groups={{0,1}}, to_apply=%condition
  %all-gather-start.1 = (f32[8]{0}, f32[16]{0}) all-gather-start(%c), replica_groups={{0,1}}, dimensions={0}
  %branch = f32[64]{0} conditional(%i, %d, %d), branch_computations={%inner, %small}
  ROOT %copy.1 = f32[1024]{0} copy(%two)
}
"""


def test_bytes_are_those_that_reach_the_main_memory():
    program = Program(TEXT)
    steps = {step.instruction.name: step for step in program.steps(program.entry, lambda loop: 3)}
    assert steps["one"].bytes == 256 * 128 * 2 + 4  # the slice, and its index; the result stays on the chip
    assert steps["two"].bytes == 8 * 4 + 4  # the update alone, and its index; it comes from the chip
    assert steps["copy-start.1"].bytes == 1024 * 4  # once: the other end is on the chip
    assert "copy-done.1" not in steps or steps["copy-done.1"].bytes == 0
    assert steps["copy.1"].bytes == 2 * 1024 * 4
    assert steps["one"].instruction.cycles == 700


def test_a_loop_runs_as_often_as_the_compiler_or_the_caller_says():
    program = Program(TEXT)
    asked = []
    steps = list(program.steps(program.entry, lambda loop: asked.append(loop.scope) or 3))
    assert [step.times for step in steps if step.instruction.name == "negate.1"] == [3, 5, 1]
    assert asked == ["f/a/while"]
    assert [loop.name for loop in program.loops(program.entry)] == ["while.1", "while.2"]


def test_a_loop_that_counts_to_a_constant_says_how_often_it_runs():
    ended = """%condition (p: (s32[], f32[64])) -> pred[] {
  %p = (s32[], f32[64]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %end = s32[]{:T(128)} constant(31)
  ROOT %less = pred[]{:T(512)} compare(%i, %end), direction=LT
}"""
    start, end = TEXT.index("%condition ("), TEXT.index("ENTRY")
    program = Program(TEXT[:start] + ended + "\n\n" + TEXT[end:])
    assert [program.trips(loop) for loop in program.loops(program.entry)] == [31, 5]
    unknown = Program(TEXT[:start] + ended.replace("LT", "NE") + "\n\n" + TEXT[end:])
    assert [unknown.trips(loop) for loop in unknown.loops(unknown.entry)] == [None, 5]


def test_of_branches_the_one_counts_that_moves_the_most():
    program = Program(TEXT)
    names = {step.instruction.name for step in program.steps(program.entry, lambda loop: 1)}
    assert "negate.1" in names and "s1" not in names


def test_the_start_of_a_gather_yields_what_it_gathers():
    program = Program(TEXT)
    steps = list(program.steps(program.entry, lambda loop: 1))
    found = {kind: [x.shape for x in arrays] for step in steps for kind, arrays in program.collectives(step)}
    assert found == {"all-reduce": [(8,)], "all-gather": [(16,)]}
    assert next(s.bytes for s in steps if s.instruction.name == "all-gather-start.1") == 16 * 4


# As the TPU compiler writes a gather that runs alongside two products.
ALONG = """HloModule jit_f

%begin (a: f32[8]) -> (f32[16], u32[]) {
  %a = f32[8]{0} parameter(0)
  %gather.1 = f32[16]{0} all-gather(%a), backend_config={"async_collective_fusion_config":{}}
  ROOT %start = (f32[16]{0}, u32[]) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%along (a: f32[8], b: f32[4]) -> f32[4] {
  %a = f32[8]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %gather.2 = f32[16]{0} all-gather(%a), backend_config={"async_collective_fusion_config":{}}
  ROOT %negate = f32[4]{0} negate(%b)
}

%end (a: f32[8]) -> f32[16] {
  %a = f32[8]{0} parameter(0)
  %gather.3 = f32[16]{0} all-gather(%a), backend_config={"async_collective_fusion_config":{}}
  ROOT %done = f32[16]{0} custom-call(%gather.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (a: f32[8], b: f32[4]) -> f32[16] {
  %a = f32[8]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %f1 = (f32[16]{0}, u32[]) fusion(%a), kind=kCustom, calls=%begin
  %f2 = f32[4]{0} fusion(%a, %b), kind=kOutput, calls=%along
  %f3 = f32[4]{0} fusion(%a, %f2), kind=kOutput, calls=%along
  ROOT %f4 = f32[16]{0} fusion(%a), kind=kCustom, calls=%end
}
"""


def test_a_collective_beside_several_operations_is_one():
    program = Program(ALONG)
    steps = program.steps(program.entry, lambda loop: 1)
    assert [kind for step in steps for kind, _ in program.collectives(step)] == ["all-gather"]


def test_a_collective_that_is_left_to_other_cores_is_one():
    began = "%f1 = (f32[16]{0}, u32[]) call-start(%a), to_apply=%begin"
    program = Program(ALONG.replace("%f1 = (f32[16]{0}, u32[]) fusion(%a), kind=kCustom, calls=%begin", began))
    steps = program.steps(program.entry, lambda loop: 1)
    assert [kind for step in steps for kind, _ in program.collectives(step)] == ["all-gather"]


@pytest.mark.parametrize(
    ("dtype", "size"), [("f8e4m3b11fnuz", 8), ("f4e2m1fn", 4), ("bf16", 16), ("pred", 8), ("s4", 4), ("c64", 64)]
)
def test_sizes_of_dtypes(dtype, size):
    assert Array(dtype, (8,), False).size == size


def test_collectives_of_a_real_program():
    """A sum over devices in a loop of seven: as often, and as large, as it was written."""
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    split = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))
    kernel = jax.device_put(np.ones((16, 64), np.float32), split(None, "model"))
    x = jax.device_put(np.ones((4, 64), np.float32), split(None, "model"))

    def step(_, x):
        y = jax.lax.with_sharding_constraint(x @ kernel.T, split())
        return jax.lax.with_sharding_constraint(jnp.tile(y, (1, 4)), split(None, "model"))

    text = jax.jit(lambda x: jax.lax.fori_loop(0, 7, step, x)).lower(x).compile().as_text()
    program = Program(text)
    found = [
        (kind, step.times, [array.shape for array in arrays])
        for step in program.steps(program.entry, lambda loop: 7)
        for kind, arrays in program.collectives(step)
    ]
    assert found == [("all-reduce", 7, [(4, 16)])]
