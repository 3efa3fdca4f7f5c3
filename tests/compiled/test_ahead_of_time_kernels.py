"""The loop with Pallas kernels, compiled by the TPU compiler: legal, in the chip's memory, and no cache is copied."""

import importlib.util

import pytest

from jaxspec.compiled.ahead_of_time import Case, compile_case
from jaxspec.compiled.copies import copies
from jaxspec.compiled.hlo import Program
from jaxspec.compiled.round import round_of, trips
from tests.benchmarks.same_pass import shortened

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)
LAYERS = 2
# In addition to the kernel: two of each norm, five products with the cutting of keys from values, two rotations.
MOST_OF_A_LAYER = 12
# After the last layer's attention: the rest of that layer, the output head, sampling, verification and the commit.
MOST_BEHIND = 78


def case_of(folder, **options):
    for name in ("target", "draft"):
        (folder / name).mkdir()
    target = shortened("llama-3.1-8b", LAYERS, folder / "target")
    return Case(target, shortened("llama-3.2-1b", LAYERS, folder / "draft"), kernels="pallas", **options)


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("topology", "options"),
    [
        ("v5e:2x2", {"batch": 3}),
        ("v6e:2x2", {"pass_tokens": 16}),
        ("tpu7x:2x2x1", {}),
        pytest.param("v5e:2x2", {"context": 32768}, marks=pytest.mark.slow),
    ],
)
def test_the_loop_with_kernels_copies_no_cache(topology, options, tmp_path):
    case = case_of(tmp_path, topology=topology, **options)
    compiled = compile_case(case)
    program = Program(compiled.text)
    steps = list(program.steps(round_of(program), lambda loop: trips(case, loop)))
    calls = [(step.instruction.scope, step.times) for step in steps if "tpu_custom_call" in step.instruction.text]
    ours = {name: sum(times for scope, times in calls if f"/{name}/" in scope) for name in ("attend", "write")}
    # The target's pass and four of the draft, in each layer; keys and values of each model, once a pass of it.
    assert ours == {"attend": (1 + case.k) * LAYERS, "write": 2 * (1 + case.k)}
    # Neither laid out anew nor carried to the chip and back; logits may be.
    moved = [step.instruction.arrays[0].shape for step in steps if step.instruction.opcode in ("copy", "copy-start")]
    assert moved and not [shape for shape in moved if len(shape) == 5 and shape[3] == case.context]
    assert copies(program, round_of(program), steps).main == 0
    sent = [array.size for step in steps for _, arrays in program.collectives(step) for array in arrays]
    assert sent and max(sent) < 2**20


@needs_compiler
@pytest.mark.optimized
def test_a_pass_takes_few_operations(tmp_path):
    """Counts those from one layer's attention to the next, and after the last: each takes longer than it computes."""
    target = shortened("llama-3.1-8b", LAYERS + 1, tmp_path)
    case = Case(target, "ngram", topology="v5e:2x2", kernels="pallas")
    program, counts = Program(compile_case(case).text), []
    for step in program.steps(round_of(program), lambda loop: trips(case, loop)):
        if step.times and "/attend/" in step.instruction.scope:
            counts.append(0)
        elif step.times and step.instruction.cycles and counts:
            counts[-1] += 1
    assert len(counts) == LAYERS + 1
    assert max(counts[:LAYERS]) <= MOST_OF_A_LAYER
    assert counts[LAYERS] <= MOST_BEHIND
