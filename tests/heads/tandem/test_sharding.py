"""A tandem decoder split over two devices drafts what it drafts on one, and no vocabulary moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxspec
from tests._fixtures import tiny
from tests._fixtures.collectives import collectives
from tests._fixtures.tandem import random_head

# Far larger than any other array here, and its parts are like no other size.
VOCAB, STEP = 8000, 4
TARGET = tiny.wide_transformer(0, vocab=VOCAB, heads=2)
HEAD = random_head(TARGET, ids=range(0, VOCAB, STEP), scale=0.1)
MESH = jax.make_mesh((1, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
PROMPTS, LENGTHS = np.random.default_rng(0).integers(0, VOCAB, (2, 6)), np.array([6, 1])


@jax.jit
def run(target, head):
    return jaxspec.generate(
        target,
        jaxspec.TandemDrafter(head, k=3),
        jnp.asarray(PROMPTS),
        prompt_length=jnp.asarray(LENGTHS),
        key=jax.random.key(1),
        sampling=jaxspec.Sampling(temperature=0.5),
        max_new_tokens=10,
    )


@pytest.mark.slow
def test_the_same_tokens_on_two_devices_and_no_vocabulary_moves():
    models = jaxspec.shard(TARGET, MESH), jaxspec.shard(HEAD, MESH)
    program = run.lower(*models).compile()
    found, expected = program(*models), run(TARGET, HEAD)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted_at, expected.stats.accepted_at)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
    # A draft vocabulary's logits and ids do: its places in the target's are no device's alone.
    assert not [moved for moved in collectives(program.as_text()) if {VOCAB, VOCAB // 2} & set(moved.shape)]


def test_what_is_split():
    params = jaxspec.shard(HEAD, MESH).params
    layer = params["layer_1"]
    split = {
        "head": params["head"],
        "mix": params["mix"]["kernel"],
        "inject": params["inject_1"]["key_value"]["kernel"],
        "query": layer["attention"]["query"]["kernel"],
        "key_value": layer["attention"]["key_value"]["kernel"],
        "gate_up": layer["mlp"]["gate_up"]["kernel"],
    }
    for name, x in split.items():
        assert x.addressable_shards[0].data.size == x.size // 2, name
