"""Greedy decoding: for any drafts, the text is that of plain decoding."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import HistoryModel, history_model
from tests._fixtures import tiny

TARGET = tiny.transformer(0, layers=2)
PROMPT = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, (4, 7)), jnp.int32)
LENGTH = jnp.array([7, 1, 4, 3], jnp.int32)
MOST = 24


def generate(target, drafter, **options):
    options = {"prompt_length": LENGTH, "max_new_tokens": MOST} | options
    return jaxspec.generate(target, drafter, PROMPT, **options)


@pytest.fixture(scope="module")
def plain():
    return generate(TARGET, None)


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(jaxspec.NGramDrafter(k=1), marks=pytest.mark.slow),
        jaxspec.NGramDrafter(k=5, min_ngram=1),
        pytest.param(jaxspec.ModelDrafter(tiny.transformer(5), k=2), marks=pytest.mark.slow),
        pytest.param(jaxspec.ModelDrafter(tiny.transformer(6, layers=2), k=5), marks=pytest.mark.slow),
    ],
    ids=["ngram 1", "ngram 5", "model 2", "model 5"],
)
def test_speculation_changes_no_token(plain, drafter):
    found = generate(TARGET, drafter)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.log_probs, plain.log_probs, atol=1e-4)
    assert found.stats.drafted.sum() > 0


@pytest.mark.slow
def test_the_target_as_its_own_draft_is_always_accepted(plain):
    """Also in rounds that a stop token or the budget cuts short."""
    stops = np.asarray(plain.tokens)[:, 9:10]
    budget = jnp.array([24, 24, 11, 1], jnp.int32)
    found = generate(TARGET, jaxspec.ModelDrafter(TARGET, k=4), stop_tokens=stops, max_new_tokens=budget)
    first = np.argmax(np.asarray(plain.tokens) == stops, axis=1)
    assert found.length.tolist() == np.minimum(first + 1, budget).tolist()
    np.testing.assert_array_equal(found.stats.accepted, found.stats.drafted)
    assert found.stats.acceptance_rate == 1.0
    assert found.stats.rounds.tolist() == [-(-int(n) // 5) for n in found.length]


@pytest.mark.slow
def test_a_draft_that_is_always_wrong_costs_nothing_but_time():
    target = history_model(0, vocab=tiny.VOCAB)
    opposite = jaxspec.ModelDrafter(HistoryModel(-target.a, -target.b), k=3)
    plain, found = generate(target, None), generate(target, opposite)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.accepted.tolist() == [0] * 4
    assert found.stats.acceptance_rate == 0.0
    assert found.stats.mean_acceptance_length == 1.0


@pytest.mark.slow
def test_any_verifier_does_at_greedy(plain):
    found = generate(TARGET, jaxspec.NGramDrafter(k=5, min_ngram=1), verifier=jaxspec.CoupledVerifier())
    np.testing.assert_array_equal(found.tokens, plain.tokens)
