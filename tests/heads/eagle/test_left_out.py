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


@jax.jit
def pairs_after(tokens, places, cache):
    """Returns the head's entries for the pairs at these places, read in one pass after those that its cache holds."""
    output = TARGET(tokens, TARGET.init_cache(len(tokens), tokens.shape[1]), capture=HEAD.capture)
    states, rows = HEAD.fuse(HEAD.features(TARGET, output.hidden)), jnp.arange(len(tokens))[:, None]
    return HEAD(HEAD.embed(TARGET, tokens[rows, places + 1]), states[rows, places], cache)[1]


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

    # The first pair after the gap is that of the last token of the round before the head woke.
    first, fed = np.asarray(woke) - 1, np.asarray(kept.cache.length - read)
    assert (fed > 2).all()
    entries = pairs_after(
        state.tokens, first[:, None] + np.arange(fed.max()), dataclasses.replace(kept.cache, length=read)
    )
    for row, (start, count) in enumerate(zip(np.asarray(read), fed, strict=True)):
        held = kept.cache.keys[:, row]
        np.testing.assert_array_equal(held[:, :, :start], before.cache.keys[:, row, :, :start])
        np.testing.assert_allclose(entries.keys[:, row, :, :count], held[:, :, start : start + count], atol=1e-5)

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
