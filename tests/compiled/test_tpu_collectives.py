"""How often a round waits for other devices outside of its layers, read from a program that the TPU compiler makes."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxspec
from jaxspec.compiled import ahead_of_time, devices
from jaxspec.compiled.ahead_of_time import Case, placed
from jaxspec.compiled.hlo import Program
from jaxspec.compiled.round import round_of, trips
from jaxspec.families.table import SHAPES

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler; `pip install 'jax[tpu]'` brings it"
)
# Each of the four drafts is embedded and drawn; the target's pass is embedded, looked through, its block's mass summed,
# and the next token drawn.
AT_TEMPERATURE = 4 * 2 + 4
# The maximum first, then eight passes each.
MORE_WITH_TOP_K_AND_TOP_P = 5 * (1 + 8 + 8)


def compiled(case, sampling):
    """The program of `compile_case`, with another policy."""
    mesh = devices.mesh_of(devices.tpus(case.topology)[0][: case.devices])
    target = placed(case.model, mesh, case.weights)
    drafter = ahead_of_time._drafter(case, target, mesh)
    like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    key, sampling = jax.eval_shape(lambda: (jax.random.key(0), jax.tree.map(jnp.asarray, sampling)))
    prompt = jax.ShapeDtypeStruct((1, case.context // 2), jnp.int32)
    arguments = target, drafter, *jax.tree.map(like, (prompt, key, sampling))

    def generate(target, drafter, prompt, key, sampling):
        return jaxspec.generate(
            target, drafter, prompt, key=key, sampling=sampling, max_new_tokens=64, capacity=case.context - case.k - 1
        )

    return Program(jax.jit(generate).trace(*arguments).lower(lowering_platforms=("tpu",)).compile().as_text())


def outside_layers(case, program):
    found = 0
    for step in program.steps(round_of(program), lambda loop: trips(case, loop)):
        if "/layer_" not in step.instruction.scope:
            found += step.times * len(list(program.collectives(step)))
    return found


@pytest.fixture
def case(tmp_path):
    """Both models with two layers, which is as many as it takes."""
    paths = []
    for model in ("llama-3.1-8b", "llama-3.2-1b"):
        path = tmp_path / f"{model}.json"
        path.write_text(json.dumps(SHAPES[model] | {"num_hidden_layers": 2}))
        paths.append(str(path))
    return Case(*paths, topology="v5e:2x2", k=4, context=512)


@needs_compiler
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("sampling", "most"),
    [
        (jaxspec.Sampling(0.8), AT_TEMPERATURE),
        pytest.param(
            jaxspec.Sampling(0.8, top_k=40, top_p=0.95),
            AT_TEMPERATURE + MORE_WITH_TOP_K_AND_TOP_P,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["temperature", "top-k and top-p"],
)
def test_a_round_waits_for_other_devices_no_more_often_than_it_must(sampling, most, case):
    assert outside_layers(case, compiled(case, sampling)) == most


@needs_compiler
@pytest.mark.slow
@pytest.mark.optimized
def test_a_tree_of_a_block_is_searched_without_a_word_between_devices(tmp_path):
    path = tmp_path / "target.json"
    path.write_text(json.dumps(SHAPES["qwen3-4b"] | {"num_hidden_layers": 6}))
    cases = [Case(str(path), f"dflash-tree:{block}", topology="v5p:2x2x1", k=12, context=512) for block in (4, 8)]
    short, long = (outside_layers(case, compiled(case, jaxspec.Greedy())) for case in cases)
    assert short == long
