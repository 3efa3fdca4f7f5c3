"""`SuffixDrafter`: against plain suffix decoding with lists and counters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.early_stop import ConfidenceStop
from jaxspec.drafters.suffix import TextStore
from jaxspec.testing.contracts.drafter import DrafterContract, _traced
from jaxspec.testing.history_models import history_model
from tests._fixtures.contract_tests import STATE_TEST
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.suffixes import suffix_guess


class TestContract(DrafterContract):
    quick_tests = STATE_TEST
    # A target that soon repeats itself, so that guesses are right, wrong and missing.
    target = history_model(3, vocab=3, scale=1.5)
    drafter = jaxspec.SuffixDrafter(k=3, max_match=5, candidates=6, min_probability=0.4)

    def guess(self, text, offset):
        found = suffix_guess(text[: len(text) - offset], self.drafter)
        return found[offset][0] if offset < len(found) else None


@pytest.mark.slow
class TestPauses(PausesContract, TestContract):
    drafter = jaxspec.SuffixDrafter(k=Turns(), max_match=5, candidates=6, min_probability=0.4)


@jax.jit
def guesses(drafter, tokens, length):
    return drafter.guess(tokens, length)


OPTIONS = {
    "as the paper": {},
    "few candidates": {"candidates": 3},
    "short matches": {"max_match": 2, "factor": 2.0, "offset": 1.0},
    "sure ones alone": {"min_probability": 0.7, "offset": 4.0},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_against_lists_and_counters(options):
    """Texts of two to four kinds of tokens, alone and with earlier ones; what lies beyond a text is not read."""
    drafter = jaxspec.SuffixDrafter(k=5, **OPTIONS[options])
    rng = np.random.default_rng(len(options))
    kinds = rng.integers(2, 5, size=200)[:, None]
    tokens = rng.integers(0, kinds, size=(200, 20))
    length = rng.integers(1, 21, size=200)
    earlier = [rng.integers(0, 3, size=n).tolist() for n in (1, 7, 9, 12, 4)]
    store = TextStore.empty(4, 9)
    for text in earlier:
        store = store.add(jnp.asarray([text], jnp.int32), jnp.array([len(text)], jnp.int32))
    kept = [text[:9] for text in earlier[1:]]
    for used, texts in ((None, ()), (store, kept)):
        stocked = dataclasses.replace(drafter, store=used)
        guess = jax.device_get(guesses(stocked, jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32)))
        for row in range(200):
            expected = suffix_guess(tokens[row, : length[row]].tolist(), drafter, texts)
            count = int(guess.count[row])
            assert guess.tokens[row, :count].tolist() == [token for token, _ in expected]
            np.testing.assert_allclose(
                guess.cum_accept_prob[row, :count], [cum_accept_prob for _, cum_accept_prob in expected], atol=1e-6
            )
        assert len(set(guess.count.tolist())) > 2


def guess(text, *, earlier=(), **options):
    store = TextStore.empty(4, 16) if earlier else None
    for other in earlier:
        store = add(store, jnp.asarray([other + [9] * (8 - len(other))], jnp.int32), jnp.array([len(other)], jnp.int32))
    drafter = jaxspec.SuffixDrafter(store=store, **options)
    padded = jnp.asarray([text + [9] * (12 - len(text))], jnp.int32)
    found = jax.device_get(guesses(drafter, padded, jnp.array([len(text)], jnp.int32)))
    count = int(found.count[0])
    return found.tokens[0, :count].tolist(), [round(float(x), 3) for x in found.cum_accept_prob[0, :count]]


@jax.jit
def add(store, tokens, length):
    return store.add(tokens, length)


def test_the_most_frequent_continuation_and_its_share():
    assert guess([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], k=2, max_match=2) == ([3, 1], [0.667, 0.667])
    assert guess([5, 1, 2], k=4) == ([], [])
    assert guess([4], k=4) == ([], [])


def test_a_longer_match_drafts_further():
    text = [1, 2, 3, 4, 5, 6, 7, 0]
    assert [len(guess(text + text[:n], k=8)[0]) for n in (1, 2, 3)] == [1, 2, 3]
    assert len(guess(text + text[:2], k=8, factor=2.0, offset=1.0)[0]) == 5


def test_a_match_that_meets_the_end_goes_on_periodically():
    assert guess([7, 1, 2, 1, 2, 1, 2], k=3) == ([1, 2, 1], [1.0, 1.0, 1.0])


@pytest.mark.slow
def test_earlier_outputs_are_copied_where_they_promise_more():
    assert guess([7, 1, 2, 3], k=3, earlier=[[0, 1, 2, 3, 4, 5, 6]]) == ([4, 5, 6], [1.0, 1.0, 1.0])
    # Equally good: the text's own.
    assert guess([2, 5, 1, 2], k=1, earlier=[[2, 6, 6]])[0] == [5]
    # The end of one earlier text is not the beginning of the next.
    assert guess([7, 1, 2], k=3, earlier=[[8, 8], [1, 2], [5, 6]]) == ([], [])


def test_the_store_keeps_the_newest_texts():
    store = TextStore.empty(3, 4)
    store = add(store, jnp.asarray([[1, 1, 1], [2, 2, 2]], jnp.int32), jnp.array([3, 1], jnp.int32))
    store = add(store, jnp.asarray([[3, 3, 3], [4, 4, 4]], jnp.int32), jnp.array([2, 0], jnp.int32))
    assert store.in_a_row().tolist() == [2, -1, -1, -1, -1, 3, 3, -1, -1, -1, -1, -1, -1, -1, -1]
    with pytest.raises(ValueError, match="the store holds 3 texts, got 4 at once"):
        store.add(jnp.zeros((4, 2), jnp.int32), jnp.zeros(4, jnp.int32))


@pytest.mark.slow
def test_what_a_store_learns_helps_and_traces_nothing(monkeypatch):
    target = TestContract.target
    prompt = jnp.asarray([[0, 1, 2], [1, 1, 0]], jnp.int32)
    drafter = jaxspec.SuffixDrafter(k=3, store=TextStore.empty(4, 32))
    first = jaxspec.generate(target, drafter, prompt, max_new_tokens=24)
    learned = dataclasses.replace(drafter, store=drafter.store.add(first.tokens, first.length))
    monkeypatch.setattr(type(target), "__call__", _traced)
    again = jaxspec.generate(target, learned, prompt, max_new_tokens=24)
    np.testing.assert_array_equal(again.tokens, first.tokens)
    assert again.stats.rounds.sum() < first.stats.rounds.sum()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_match": 0}, ValueError, "SuffixDrafter needs max_match of at least 1, got 0"),
        ({"candidates": 2.5}, TypeError, "SuffixDrafter needs an integer as candidates, got 2.5"),
        ({"min_probability": 1.5}, ValueError, "needs min_probability between 0 and 1, got 1.5"),
        ({"factor": -1.0}, ValueError, "needs factor at least 0, got -1.0"),
        ({"k": ConfidenceStop(3)}, ValueError, "SuffixDrafter copies and draws nothing"),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        jaxspec.SuffixDrafter(**options)


def test_the_store_must_be_one():
    drafter = jaxspec.SuffixDrafter(k=2, store=jnp.zeros((2, 3), jnp.int32))
    with pytest.raises(TypeError, match="store must be a TextStore or None"):
        jaxspec.generate(TestContract.target, drafter, jnp.asarray([[0, 1]]), max_new_tokens=2)
