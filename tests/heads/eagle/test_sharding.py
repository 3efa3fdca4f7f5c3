"""An EAGLE head split over two devices drafts what it drafts on one, in chains and trees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxspec
from tests._fixtures import tiny
from tests._fixtures.collectives import collectives
from tests._fixtures.eagle import eagle_head

# Far larger than any other array here, and its parts are like no other size.
VOCAB, STEP = 8000, 4
TARGET = tiny.wide_transformer(0, vocab=VOCAB, heads=2)
HEAD = eagle_head(0, capture=(0, 1), ids=range(0, VOCAB, STEP), target=TARGET)
MESH = jax.make_mesh((1, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
PROMPTS, LENGTHS = np.random.default_rng(0).integers(0, VOCAB, (2, 6)), np.array([6, 1])


@functools.partial(jax.jit, static_argnames="make")
def run(target, head, make):
    return jaxspec.generate(
        target,
        make(head),
        jnp.asarray(PROMPTS),
        prompt_length=jnp.asarray(LENGTHS),
        key=jax.random.key(1),
        sampling=jaxspec.Sampling(temperature=0.5),
        max_new_tokens=8,
    )


def chain(head):
    return jaxspec.EagleDrafter(head, k=3)


def tree(head):
    return jaxspec.drafters.DynamicTreeDrafter(head, top_k=2, depth=2, nodes=4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [chain, pytest.param(tree, marks=pytest.mark.slow)])
def test_the_same_tokens_on_two_devices_and_no_vocabulary_moves(make):
    models = jaxspec.shard(TARGET, MESH), jaxspec.shard(HEAD, MESH)
    program = run.lower(*models, make=make).compile()
    found, expected = program(*models), run(TARGET, HEAD, make=make)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted_at, expected.stats.accepted_at)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
    # A draft vocabulary's logits and ids do: its places in the target's are no device's alone.
    text = program.as_text()
    assert not [moved for moved in collectives(text) if {VOCAB, VOCAB // 2} & set(moved.shape)]
    # Nor does that with each draft of a chain: all distributions are sent together.
    of_a_draft = [line for line in text.splitlines() if "/further_drafts/" in line]
    assert not [moved for moved in collectives("\n".join(of_a_draft)) if VOCAB // STEP in moved.shape]


def test_what_is_split():
    params = jaxspec.shard(HEAD, MESH).params
    split = {
        "head": params["head"],
        "fuse": params["fuse"]["kernel"],
        "query": params["attention"]["query"]["kernel"],
        "key_value": params["attention"]["key_value"]["kernel"],
        "gate_up": params["mlp"]["gate_up"]["kernel"],
    }
    for name, x in split.items():
        assert x.addressable_shards[0].data.size == x.size // 2, name
