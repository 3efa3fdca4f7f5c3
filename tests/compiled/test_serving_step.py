"""A server's step for compilation: its arguments, where their arrays lie, and what a command may ask for."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec
from typer.testing import CliRunner

import jaxspec
from jaxspec.cli.app import app
from jaxspec.compiled import serving_step
from jaxspec.compiled.ahead_of_time import Case, _call, placed
from jaxspec.compiled.devices import mesh_of
from jaxspec.sharding.params import shard
from jaxspec.sharding.rules import Rules
from tests._fixtures import tiny
from tests.benchmarks.same_pass import shortened

SPLIT = PartitionSpec(None, None, "model", None, None)


@pytest.fixture(scope="module")
def target():
    """A decoder whose two key-value heads are split over two devices."""
    mesh = jax.make_mesh((2,), ("model",), devices=jax.devices()[:2])
    model = tiny.random_model(
        tiny.TransformerConfig(11, 1, 16, 4, 2, 8, 24, 512, (tiny.Rope(1e4),), (None,), tied_head=True), 0, 0.02
    )
    return shard(model, mesh, Rules(kv_heads="model"))


def _arguments(target, drafter=None, rows=3):
    shapes = jax.eval_shape(lambda model: model, target)
    shapes = jax.tree.map(lambda x, own: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=own.sharding), shapes, target)
    sampling = jaxspec.Sampling(temperature=jax.ShapeDtypeStruct((), jnp.float32))
    return serving_step.arguments_of(shapes, drafter, sampling, rows=rows, capacity=256)


def test_caches_are_split_and_all_else_is_copied(target):
    _, _, slots, free, most, until_end = _arguments(target)
    cache = slots.state.context.cache
    assert cache.keys.sharding.spec == cache.values.sharding.spec == SPLIT and cache.keys.shape[1] == 3
    rest = [x for x in jax.tree.leaves(slots) if x.ndim != 5]
    assert len(rest) > 10 and all(x.sharding.is_fully_replicated for x in (*rest, free, most, until_end))
    assert (free.shape, most.shape, until_end.dtype) == ((3,), (), jnp.bool_)


@pytest.mark.slow
def test_slots_lie_where_those_of_a_server_do(target):
    """Of as many rows and the same room, made by the public function that an engine's rows fit."""
    drafter = jaxspec.NGramDrafter(k=2)
    made = jaxspec.serving.slots(target, drafter, 3, capacity=256, sampling=jaxspec.Sampling(temperature=1.0))
    slots = _arguments(target, drafter)[2]
    assert jax.tree.structure(slots) == jax.tree.structure(made)
    for mine, theirs in zip(jax.tree.leaves(slots), jax.tree.leaves(made), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim) or theirs.sharding.is_fully_replicated


@pytest.mark.slow
def test_the_step_runs_and_frees(target):
    slots = jaxspec.serving.slots(target, None, 2, capacity=32)
    row = jaxspec.serving.feed(target, None, [[1, 2]], capacity=32, max_new_tokens=3)
    slots = jaxspec.serving.insert(jaxspec.serving.insert(slots, row, 0), row, 1)
    free = jnp.asarray([False, True])
    _, found = jax.jit(serving_step.step)(target, None, slots, free, jnp.int32(2), jnp.asarray(False))
    assert found.done.tolist() == [False, True] and int(found.count) == 2


def test_rows_are_the_slots(tmp_path):
    model = shortened("llama-3.2-1b", 1, tmp_path)
    case = Case(model, "none", k=0, slots=4, context=256)
    assert case.rows == 4 and Case(model, "none", k=0, batch=3).rows == 3
    mesh = mesh_of(jax.devices()[:2])
    function, arguments, donated = _call(case, placed(model, mesh, "bfloat16"), None, mesh)
    assert function is serving_step.step and donated == (2,)
    assert arguments[2].state.length.shape == (4,) and arguments[2].state.tokens.shape == (4, 257)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--slots", "0"], "--slots must be at least 1, got 0"),
        (["--slots", "8", "--batch", "2"], "slots are the rows of a server, got --batch 2 too"),
        (["--slots", "8", "--pass-tokens", "16"], "--pass-tokens applies to generate, got 16 with slots"),
        (["--slots", "8", "--context", "2000"], "got 2000; pass 2048"),
        (["--slots", "8", "--gpu", "h100"], "--slots 8 applies to TPUs; leave it out with --gpu h100"),
    ],
)
def test_mistakes_are_said(options, text):
    found = CliRunner().invoke(app, ["compile-report", "--drafter", "none", *options])
    assert found.exit_code == 2 and text in " ".join(found.output.split())
