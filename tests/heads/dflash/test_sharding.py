"""A DFlash head split over two devices drafts what it drafts on one, and no vocabulary moves."""

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.compiled.hlo import Program
from jaxspec.core.parts import over_devices
from jaxspec.core.prefill import prefill
from jaxspec.core.random import RoundKeys, row_keys
from jaxspec.core.state import Context
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.testing.contracts.head import LENGTHS, PROMPTS, STEP, VOCAB, WIDE, SplitHeadContract, two_devices
from tests._fixtures.dflash import random_head


class TestSplit(SplitHeadContract):
    head = random_head(
        WIDE, ids=range(0, VOCAB, STEP), scale=0.1, markov_rank=4, confidence="place and token", feature_norms=True
    )
    split = (
        *("head", "mix.kernel", "markov_after", "layer_1.attention.query.kernel"),
        *("layer_1.attention.key_value.kernel", "layer_1.mlp.gate_up.kernel"),
    )

    def drafter(self, head):
        return DFlashDrafter(head, k=3)


def _waits(k):
    """How often devices wait for each other until a block of `k` drafts without a Markov head is drawn."""
    head = random_head(WIDE, ids=range(0, VOCAB, STEP))
    models = jaxspec.shard(WIDE, two_devices()), jaxspec.shard(head, two_devices())

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
