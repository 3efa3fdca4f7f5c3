"""Rows that are split over devices move between states, and no cache is gathered for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.rows import row_axes
from jaxspec.core.tree import Tree
from jaxspec.sharding.params import shard_models
from jaxspec.testing.collectives import collectives
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.eagle import eagle_head
from tests._fixtures.meshes import LENGTHS, PROMPT, VOCAB, make_mesh
from tests.benchmarks.workload import disturbed

TARGET = wide_transformer(0, vocab=VOCAB)
DRAFT = disturbed(TARGET, 0.2)
BATCH = 4
DRAFTERS = {
    "model": lambda: jaxspec.ModelDrafter(DRAFT, k=3),
    "tree": lambda: jaxspec.TreeDrafter(DRAFT, Tree((-1, -1, 0, 0, 1, 2))),
    "eagle": lambda: jaxspec.EagleDrafter(eagle_head(0, target=TARGET), k=3),
}


def start(target, drafter, batch, seed=0):
    rows = np.arange(batch) % BATCH
    return jaxspec.init(
        target,
        drafter,
        jnp.asarray((PROMPT + seed)[rows] % VOCAB),
        prompt_length=LENGTHS[rows],
        max_new_tokens=12,
        sampling=jaxspec.Sampling(jnp.asarray([0.7, 1.0, 0.0, 1.3])[rows]),
        key=jax.random.split(jax.random.key(seed), batch),
    )


def moved(axes, run, state, others):
    """Tokens after rows have moved, and the programs that moved them."""
    state, others = run(state, 1), run(others, 2)
    take, insert, gather = (jax.jit(move) for move in (axes.take, axes.insert, axes.gather))
    row, rows = take(state, jnp.int32(3)), jnp.asarray([1, 2, 3, 0], jnp.int32)
    others = insert(others, row, jnp.int32(0))
    programs = {
        "take": take.lower(state, jnp.int32(3)),
        "insert": insert.lower(others, row, jnp.int32(0)),
        "gather": gather.lower(others, rows),
        "wide": gather.lower(others, jnp.concatenate([rows, rows])),
    }
    return jaxspec.finish(run(gather(others, rows), 20)), others, programs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "tree", "eagle"])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4)], ids=str)
def test_rows_of_a_mesh_move_and_no_cache_is_gathered(name, shape):
    step = jax.jit(functools.partial(jaxspec.step, lossy=True))
    results = []
    for mesh in (None, make_mesh(*shape)):
        target, drafter = TARGET, DRAFTERS[name]()
        if mesh is not None:
            target, drafter = shard_models((target, drafter), mesh)

        def run(state, rounds, target=target, drafter=drafter):
            for _ in range(rounds):
                state, _ = step(target, drafter, None, state)
            return state

        axes = row_axes(lambda batch, target=target, drafter=drafter: start(target, drafter, batch))
        results.append(moved(axes, run, *(start(target, drafter, BATCH, seed) for seed in (0, 1))))
    (found, state, programs), (expected, *_) = results[1], results[0]
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.length, expected.length)
    keys = state.cache.keys
    assert keys.sharding.spec[1] == "data" and keys.addressable_shards[0].data.shape[1] == BATCH // shape[0]
    row = keys.size // BATCH // shape[1]  # of which a device holds some heads
    for kind, program in programs.items():
        sent = collectives(program.compile().as_text())
        assert not [c for c in sent if c.kind in ("all-gather", "all-to-all")], kind
        assert all(np.prod(c.shape) <= row for c in sent), kind
