"""`NGramDrafter`: against a plain search, and the cost of a round without a guess."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Context
from jaxspec.drafters.base import NoDrafter
from jaxspec.drafters.ngram import find_latest_match
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.history_models import HistoryModel, history_model
from tests._fixtures import tiny
from tests._fixtures.contract_tests import STATE_TEST
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.ngrams import search


class TestContract(DrafterContract):
    # A target that soon repeats itself, so that guesses are right, wrong and missing.
    target = history_model(3, vocab=3, scale=1.5)
    drafter = jaxspec.NGramDrafter(k=3, max_ngram=3, min_ngram=2)

    def guess(self, text, offset):
        text = text[: len(text) - offset]
        last = search(text, 3, 2)
        if last is None:
            return None
        followed = text[last + 1 :]
        return followed[offset % len(followed)]


class TestPauses(PausesContract, TestContract):
    quick_tests = (*STATE_TEST, "test_rounds_draft_different_numbers")
    drafter = jaxspec.NGramDrafter(k=Turns(), max_ngram=3)


class TestNothingDrafted(DrafterContract):
    quick_tests = STATE_TEST
    drafter = NoDrafter()

    def guess(self, text, offset):
        raise AssertionError("it drafts nothing")


@pytest.mark.parametrize("max_ngram", [1, 2, 4])
@pytest.mark.parametrize("vocab", [2, 3, 6])
def test_the_match_is_the_longest_then_the_latest(vocab, max_ngram):
    rng = np.random.default_rng(vocab * 10 + max_ngram)
    tokens = rng.integers(0, vocab, size=(300, 24))
    length = rng.integers(1, 25, size=300)
    # Tokens beyond the text must not be found: copies of the text are planted there.
    matched, end = find_latest_match(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32), max_ngram)
    for row in range(300):
        text = tokens[row, : length[row]].tolist()
        expected = search(text, max_ngram, 1)
        if expected is None:
            assert matched[row] == 0
        else:
            assert end[row] == expected
            size = int(matched[row])
            assert text[expected - size + 1 : expected + 1] == text[len(text) - size :]
            assert size == max_ngram or search(text, size + 1, size + 1) is None


def propose(text, **options):
    drafter = jaxspec.NGramDrafter(**options)
    tokens = jnp.asarray([text + [9, 9, 9]], jnp.int32)
    done = jnp.zeros(1, jnp.bool_)
    length = jnp.array([len(text)], jnp.int32)
    context = jaxspec.core.state.Context(None, None, tokens, length, done, None)
    rng = RoundKeys(jax.random.key(0)[None], length)
    proposal, _ = drafter.propose(rng, drafter.init(context, None, 24), context)
    return proposal.tokens[0].tolist(), proposal.valid[0].tolist()


@pytest.mark.slow
def test_a_match_that_meets_the_end_goes_on_periodically():
    assert propose([5, 1, 2, 1, 2], k=5) == ([1, 2, 1, 2, 1], [True] * 5)
    assert propose([7, 7, 7], k=3) == ([7, 7, 7], [True] * 3)


@pytest.mark.slow
def test_what_followed_the_latest_match_is_copied():
    assert propose([1, 2, 3, 1, 2, 4, 1, 2], k=3) == ([4, 1, 2], [True] * 3)


@pytest.mark.slow
def test_a_longer_match_beats_a_later_one():
    assert propose([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], k=1) == ([7], [True])


@pytest.mark.slow
def test_short_matches_are_no_guess():
    assert propose([1, 2, 3, 1], k=2)[1] == [False, False]
    assert propose([1, 2, 3, 1], k=2, min_ngram=1) == ([2, 3], [True, True])
    assert propose([4], k=2)[1] == [False, False]


def test_no_drafts():
    assert propose([1, 2, 1, 2], k=0) == ([], [])
    assert jaxspec.NGramDrafter(k=0).lengths == (0,)


@pytest.mark.slow
def test_a_round_without_a_guess_feeds_one_token(monkeypatch):
    """The branch is chosen on the device: count how wide the pass was in each executed round."""
    import jax

    widths = []
    call = HistoryModel.__call__

    def counting(self, tokens, cache, **options):
        jax.debug.callback(lambda width=tokens.shape[1]: widths.append(width))
        return call(self, tokens, cache, **options)

    target = history_model(3, vocab=tiny.VOCAB, scale=3.0)
    prompt = jnp.arange(8, dtype=jnp.int32)[None]
    monkeypatch.setattr(HistoryModel, "__call__", counting)
    state = jaxspec.init(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=24)
    step = jax.jit(lambda state: jaxspec.step(target, jaxspec.NGramDrafter(k=4), jaxspec.TokenVerifier(), state))
    jax.effects_barrier()
    widths.clear()
    drafted = []
    while not state.done.all():
        state, info = step(state)
        drafted.append(int(info.drafted[0]))
    jax.effects_barrier()
    assert len(widths) == len(drafted)
    assert {(width, count > 0) for width, count in zip(widths, drafted, strict=True)} == {(1, False), (5, True)}


def test_rows_that_found_nothing_wait_for_those_that_did():
    """Two copied tokens pay for a row alone, and not for the round of eight of which seven found nothing."""
    drafter = jaxspec.NGramDrafter(k=jaxspec.Adaptive((1.0, 1.3), (0, 2)), min_ngram=1)
    for rows, drafted in ((1, True), (8, False)):
        tokens = jnp.asarray([[1, 2, 1], *[[1, 2, 3]] * 7], jnp.int32)[:rows]
        state = jaxspec.init(history_model(0), drafter, tokens, max_new_tokens=9)
        at = Context(None, None, state.tokens, state.length, state.done, jaxspec.Greedy())
        rng = RoundKeys(jax.random.split(jax.random.key(0), rows), state.length)
        proposal, _ = drafter.propose(rng, state.drafter_state, at)
        assert proposal.valid.any(axis=1).tolist() == [drafted] + [False] * (rows - 1)
