"""`ModelDrafter`: the law it reports, and what its cache holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from tests import tiny
from tests.contracts import DrafterContract

TARGET = DrafterContract.target
DRAFT = tiny.nearby(TARGET, 0.4)


class TestHistoryDraft(DrafterContract):
    drafter = jaxspec.ModelDrafter(DRAFT, k=3)

    def guess(self, text, offset):
        return tiny.history_law(DRAFT, text)


class TestOneDraft(DrafterContract):
    drafter = jaxspec.ModelDrafter(DRAFT, k=1)

    def guess(self, text, offset):
        return tiny.history_law(DRAFT, text)


class TestColderDraft(DrafterContract):
    """A drafter may draw from any law that it reports."""

    drafter = jaxspec.ModelDrafter(DRAFT, k=2, sampling=jaxspec.Sampling(temperature=0.5))

    def guess(self, text, offset):
        return tiny.history_law(DRAFT, text, temperature=0.5)


class TestMostLikelyDraft(DrafterContract):
    """Greedy drafts report no law: they are certain."""

    drafter = jaxspec.ModelDrafter(DRAFT, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        return int(np.argmax(tiny.history_law(DRAFT, text)))


class TestTransformerDraft(DrafterContract):
    model = tiny.transformer(1)
    drafter = jaxspec.ModelDrafter(model, k=3)
    sees_every_acceptance = False

    def guess(self, text, offset):
        padded = jnp.asarray([text + [0] * (64 - len(text))], jnp.int32)
        logits = score(self.model, padded)[0, len(text) - 1]
        return np.asarray(jax.nn.softmax(logits))


@jax.jit
def score(model, tokens):
    return model(tokens, model.init_cache(1, tokens.shape[1])).logits


@pytest.mark.parametrize("draft", [TARGET, DRAFT, tiny.HistoryModel(-TARGET.a, -TARGET.b)])
def test_the_cache_holds_the_text_whatever_was_accepted(draft):
    """Full acceptance, some and none: all but the last two committed tokens are there."""
    prompt, length = jnp.asarray([[3, 1, 4], [1, 0, 0]], jnp.int32), jnp.array([3, 1], jnp.int32)
    drafter = jaxspec.ModelDrafter(draft, k=3)
    options = {"prompt_length": length, "max_new_tokens": 30}
    state = jax.jit(lambda drafter: jaxspec.init(TARGET, drafter, prompt, **options))(drafter)
    for _ in range(6):
        before = state
        state, info = jaxspec.jit_step()(TARGET, drafter, jaxspec.TokenVerifier(), state)
        for row in range(2):
            held = int(before.length[row]) + min(int(info.accepted[row]), 2)
            np.testing.assert_array_equal(state.drafter_state.tokens[row, :held], state.tokens[row, :held])
            assert held >= int(state.length[row]) - 2
            # The target's cache: all but the last committed token, each at its own position.
            fed = int(state.length[row]) - 1
            assert int(state.cache.length[row]) == fed
            np.testing.assert_array_equal(state.cache.tokens[row, :fed], state.tokens[row, :fed])
            np.testing.assert_array_equal(state.cache.positions[row, :fed], np.arange(fed))


def test_no_drafts_is_plain_decoding():
    prompt = jnp.asarray([[3, 1, 4]], jnp.int32)
    plain = jaxspec.generate(TARGET, None, prompt, max_new_tokens=12)
    found = jaxspec.generate(TARGET, jaxspec.ModelDrafter(DRAFT, k=0), prompt, max_new_tokens=12)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.rounds.tolist() == [12]
    assert found.stats.drafted.tolist() == [0]
