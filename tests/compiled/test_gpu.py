"""The loop compiled by the GPU compiler: the host waits for no more than the rounds, and each weight is read once."""

import importlib.util

import pytest
from typer.testing import CliRunner

from jaxspec.cli.app import app
from jaxspec.compiled import devices
from jaxspec.compiled.ahead_of_time import Case, compile_case, default_k
from jaxspec.compiled.gpu import GpuProgram, GpuReport, as_json, costs, lines
from tests.benchmarks.same_pass import shortened

needs_compiler = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in devices._PLUGINS),
    reason="needs the GPU compiler; `pip install 'jax[cuda]'` brings it",
)
# The round's own, and one of a loop that takes in what earlier rounds left; of n-grams those of two loops, with drafts
# and without.
WAITS, OF_LENGTHS = 2, 4


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("draft", "gpu", "options", "most"),
    [
        ("model", "h100", {}, 1.05),
        ("eagle:32000", "h100", {}, 1.05),
        pytest.param("model", "a100", {}, 1.05, marks=pytest.mark.slow),
        pytest.param("model", "h100", {"weights": "int8"}, 1.08, marks=pytest.mark.slow),
        pytest.param("model", "h100", {"weights": "int4"}, 1.12, marks=pytest.mark.slow),
        pytest.param("ngram", "h100", {"batch": 8, "context": 32768}, 1.15, marks=pytest.mark.slow),
    ],
)
def test_the_host_waits_for_rounds_alone(draft, gpu, options, most, tmp_path):
    (tmp_path / "draft").mkdir()
    own = shortened("llama-3.2-1b", 2, tmp_path / "draft") if draft == "model" else draft
    case = Case(shortened("llama-3.1-8b", 2, tmp_path), own, f"{gpu}:1", k=default_k(own), **options)
    compiled = compile_case(case)
    found = costs(case, compiled)
    assert found.conditions <= (OF_LENGTHS if draft == "ngram" else WAITS)
    # Two layers: operations at their ends count for a half each.
    assert found.layer_kernels <= 15
    assert 0.9 < found.bytes / found.least_bytes <= most
    assert found.layer_collectives == found.other_collectives == {}
    said = dict(lines(GpuReport(case, 1, compiled.memory, compiled.chip.memory, found, None)))
    assert "of the least possible" in said["round"] and as_json(GpuReport(case, 1, 1, 2, found, found))


@needs_compiler
@pytest.mark.slow
@pytest.mark.optimized
def test_what_xla_would_wait_for(tmp_path):
    """XLA's attention makes the host wait twice in each layer, which the kernel avoids."""
    case = Case(shortened("llama-3.1-8b", 2, tmp_path), "none", "h100:1", k=0, kernels="xla")
    assert costs(case, compile_case(case)).conditions >= 1 + 2 * 2


LOOPS = """
HloModule m

%known (x: s32[]) -> s32[] {
  ROOT %x = s32[] parameter(0)
}

%inner (x: s32[]) -> s32[] {
  ROOT %x.1 = s32[] parameter(0)
}

%ends (x: s32[]) -> pred[] {
  %x.2 = s32[] parameter(0)
  ROOT %c = pred[] compare(%x.2, %x.2), direction=LT
}

ENTRY %main (x: s32[]) -> s32[] {
  %x.3 = s32[] parameter(0)
  %w = s32[] while(%x.3), condition=%ends, body=%known, backend_config={"known_trip_count":{"n":"8"}}
  ROOT %v = s32[] while(%w), condition=%ends, body=%inner, metadata={op_name="jit(f)/propose/further_drafts/while"}
}
"""


def test_conditions_of_known_loops_are_not_read():
    """Three trips of a loop of unknown length are four conditions."""
    assert GpuProgram(LOOPS).conditions("main", Case("llama-3.2-1b", "llama-3.2-1b", k=4)) == 3 + 1


KERNEL = """
HloModule m

ENTRY %main (q: bf16[1,5,8,4,128], c: bf16[4,1,8,2048,128]) -> f32[1,8] {
  %q = bf16[1,5,8,4,128] parameter(0)
  %c = bf16[4,1,8,2048,128] parameter(1)
  ROOT %k = f32[1,8] custom-call(%q, %c), custom_call_target="__gpu$xla.gpu.triton"
}
"""


def test_a_kernel_reads_one_layer_of_a_cache():
    program = GpuProgram(KERNEL)
    inside = program.computations["main"]
    assert program.moved(inside["k"], inside) == 2 * (5 * 8 * 4 * 128 + 8 * 2048 * 128) + 4 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "b200"], "'b200' is not one of 'h100', 'a100'"),
        (["--gpu", "h100", "--topology", "v5e:2x2"], "--topology v5e:2x2 applies to TPUs"),
        (["--gpu", "h100", "--devices", "0"], "--devices must be positive, got 0"),
        (["--topology", "h100:1"], "--topology h100:1 is of GPUs; pass --gpu h100"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    found = CliRunner().invoke(app, ["compile-report", *arguments])
    assert found.exit_code == 2 and message in " ".join(found.output.split())
