"""An EAGLE head that rounds left out: it goes on with what it sees, and says what it holds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.contracts.drafter import PROMPTS
from tests._fixtures.eagle import HEAD, TARGET

AWAKE = jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=2), jaxspec.EagleDrafter(HEAD, k=2))
RESTS = dataclasses.replace(AWAKE, rests=True)


def steps(step, drafter, state, count):
    for _ in range(count):
        state, _ = step(TARGET, drafter, None, state)
    return state


def test_it_goes_on_after_text_that_it_has_not_seen():
    """The pairs since then are read as if they followed those from before, and only these can be continued."""
    step = jaxspec.jit_step()
    state = jaxspec.init(TARGET, AWAKE, jnp.asarray(PROMPTS), max_new_tokens=40)
    state = steps(step, AWAKE, state, 2)
    before = state.drafter_state.model.draft_state
    read, lengths = before.cache.length, state.length
    state = steps(step, RESTS, state, 3)
    assert (state.length >= lengths + 3).all()
    jax.tree.map(np.testing.assert_array_equal, state.drafter_state.model.draft_state, before)
    np.testing.assert_array_equal(jaxspec.serving.held_tokens(AWAKE, state.cache, state.drafter_state), read)

    woke = state.length
    state = steps(step, AWAKE, state, 1)
    assert state.drafter_state.model.submitted.tolist() == [0] * len(PROMPTS)  # no state of the newest pair was kept
    state = steps(step, AWAKE, state, 4)
    kept = state.drafter_state.model.draft_state
    np.testing.assert_array_equal(kept.whole, read)
    np.testing.assert_array_equal(kept.cache.length + kept.missing + kept.waiting, state.length - 1)
    np.testing.assert_array_equal(jaxspec.serving.held_tokens(AWAKE, state.cache, state.drafter_state), read)

    output = TARGET(state.tokens, TARGET.init_cache(len(PROMPTS), 64), capture=HEAD.capture)
    states, after = HEAD.fuse(HEAD.features(TARGET, output.hidden)), HEAD.embed(TARGET, state.tokens[:, 1:])
    for row in range(len(PROMPTS)):
        # The first pair after the gap is that of the last token of the round before the head woke.
        first, fed = int(woke[row]) - 1, int(kept.cache.length[row] - read[row])
        pairs = slice(first, first + fed)
        cache = HEAD.init_cache(1, 64)
        cache = dataclasses.replace(
            cache,
            keys=cache.keys.at[:, :, :, : kept.cache.keys.shape[3]].set(kept.cache.keys[:, row : row + 1]),
            values=cache.values.at[:, :, :, : kept.cache.values.shape[3]].set(kept.cache.values[:, row : row + 1]),
            length=read[row : row + 1],
        )
        _, entries = HEAD(after[row : row + 1, pairs], states[row : row + 1, pairs], cache)
        old, own = slice(int(read[row])), slice(int(read[row]), int(read[row]) + fed)
        np.testing.assert_array_equal(kept.cache.keys[:, row, :, old], before.cache.keys[:, row, :, old])
        assert fed > 2
        np.testing.assert_allclose(entries.keys[:, 0], kept.cache.keys[:, row, :, own], atol=1e-5)

    plain = jaxspec.generate(TARGET, None, jnp.asarray(PROMPTS), max_new_tokens=40)
    for row, (text, length) in enumerate(zip(state.tokens, state.length, strict=True)):
        written = text[PROMPTS.shape[1] : int(length)]
        np.testing.assert_array_equal(written, plain.tokens[row, : len(written)])


def test_only_what_can_be_left_out_rests():
    with pytest.raises(ValueError, match="rests=True needs a model that can be left out"):
        jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(TARGET, k=2), rests=True)
    with pytest.raises(ValueError, match="begin with rests=False"):
        jaxspec.generate(TARGET, RESTS, jnp.asarray(PROMPTS), max_new_tokens=4)
    assert (RESTS.capture, RESTS.deterministic, RESTS.lengths) == ((), True, (0, 2))
