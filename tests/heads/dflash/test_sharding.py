"""A DFlash head split over two devices drafts what it drafts on one, and no vocabulary moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxspec
from jaxspec.bench.hlo import Program
from jaxspec.core.parts import over_devices
from jaxspec.core.prefill import prefill
from jaxspec.core.random import RoundKeys, row_keys
from jaxspec.core.state import Context
from jaxspec.heads.dflash.drafter import DFlashDrafter
from tests._fixtures import tiny
from tests._fixtures.collectives import collectives
from tests._fixtures.dflash import random_head

# Far larger than any other array here, and its parts are like no other size.
VOCAB, STEP = 8000, 4
TARGET = tiny.wide_transformer(0, vocab=VOCAB, heads=2)
OPTIONS = {"markov_rank": 4, "confidence": "place and token", "feature_norms": True}
HEAD = random_head(TARGET, ids=range(0, VOCAB, STEP), scale=0.1, **OPTIONS)
MESH = jax.make_mesh((1, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
PROMPTS, LENGTHS = np.random.default_rng(0).integers(0, VOCAB, (2, 6)), np.array([6, 1])


@jax.jit
def run(target, head):
    return jaxspec.generate(
        target,
        DFlashDrafter(head, k=3),
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
    assert expected.stats.accepted.sum() > 0
    # A draft vocabulary's logits and ids do: its places in the target's are no device's alone.
    assert not [moved for moved in collectives(program.as_text()) if {VOCAB, VOCAB // 2} & set(moved.shape)]


def _waits(k):
    """How often devices wait for each other until a block of `k` drafts without a Markov head is drawn."""
    models = jaxspec.shard(TARGET, MESH), jaxspec.shard(random_head(TARGET, ids=range(0, VOCAB, STEP)), MESH)

    def propose(target, head, tokens, length):
        drafter, sampling = DFlashDrafter(head, k=k), jaxspec.Sampling(temperature=0.5)
        with over_devices(target.placement):
            prefilled = prefill(target, tokens, length, target.init_cache(2, 16), head.capture)
            context = Context(target, prefilled.cache, tokens, length, jnp.zeros(2, jnp.bool_), sampling)
            rng = RoundKeys(row_keys(jax.random.key(0), 2), length)
            return drafter.propose(rng, drafter.init(context, prefilled, 16), context)[0]

    arguments = (*models, jnp.asarray(PROMPTS, jnp.int32), jnp.asarray(LENGTHS, jnp.int32))
    program = Program(jax.jit(propose).lower(*arguments).compile().as_text())
    steps = program.steps(program.entry, lambda loop: 1)
    return sum(step.times * len(list(program.collectives(step))) for step in steps)


@pytest.mark.slow
def test_a_block_without_a_markov_head_is_drawn_at_once():
    assert _waits(3) == _waits(2) > 0


def test_what_is_split():
    params = jaxspec.shard(HEAD, MESH).params
    layer = params["layer_1"]
    split = {
        "head": params["head"],
        "mix": params["mix"]["kernel"],
        "markov_after": params["markov_after"],
        "query": layer["attention"]["query"]["kernel"],
        "key_value": layer["attention"]["key_value"]["kernel"],
        "gate_up": layer["mlp"]["gate_up"]["kernel"],
    }
    for name, x in split.items():
        assert x.addressable_shards[0].data.size == x.size // 2, name
