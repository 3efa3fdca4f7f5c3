"""The same round over and over: nothing of one round is left in the next."""

import jax
import numpy as np

import jaxspec
from jaxspec.bench.costs import repeat_round
from jaxspec.core.model import Cache
from tests._fixtures import dflash as blocks
from tests._fixtures import tiny

TARGET = tiny.transformer(0)
DRAFTER = jaxspec.DFlashDrafter(blocks.random_head(TARGET), k=2)


def test_every_round_begins_with_the_state_of_the_first():
    prompt = np.array([[1, 2, 3, 4, 1, 2]], np.int32)
    start = jaxspec.init(TARGET, DRAFTER, prompt, max_new_tokens=8)
    after = repeat_round(TARGET, DRAFTER, None, start, count=3)
    is_cache = lambda x: isinstance(x, Cache)
    for ours, first in zip(
        jax.tree.leaves(after.drafter_state, is_leaf=is_cache),
        jax.tree.leaves(start.drafter_state, is_leaf=is_cache),
        strict=True,
    ):
        ours, first = (ours.length, first.length) if is_cache(ours) else (ours, first)
        np.testing.assert_array_equal(ours, first)
    np.testing.assert_array_equal(after.length, start.length)
    assert after.stats.rounds.tolist() == [3]
