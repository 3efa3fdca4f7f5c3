"""Coupled sampling: the same key gives the same text, with or without speculation.

Every row has its own key, temperature 0.8 and top-p 0.95.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import history_model, nearby
from tests._fixtures import tiny

TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFT = nearby(TARGET, 0.3)
ROWS, MOST = 6, 30
PROMPT = np.random.default_rng(1).integers(0, tiny.VOCAB, (ROWS, 7))
LENGTH = np.array([7, 1, 4, 3, 2, 7])
KEYS = jax.random.split(jax.random.key(8), ROWS)
MAKERS = {
    "ngram": lambda k: jaxspec.NGramDrafter(k=k, min_ngram=1),
    "model": lambda k: jaxspec.ModelDrafter(DRAFT, k=k),
}


def generate(drafter, rows=range(ROWS), *, keys=KEYS, target=TARGET, **options):
    rows = np.asarray(rows)
    return jaxspec.generate(
        target,
        drafter,
        jnp.asarray(PROMPT[rows]),
        prompt_length=jnp.asarray(LENGTH[rows]),
        max_new_tokens=MOST,
        sampling=jaxspec.Sampling(temperature=0.8, top_p=0.95),
        verifier=jaxspec.CoupledVerifier(),
        key=keys[rows],
        **options,
    )


@pytest.fixture(scope="module")
def plain():
    return generate(None)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("k", [4, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, 8))])
def test_the_text_is_that_of_plain_sampling(plain, kind, k):
    drafter = MAKERS[kind](k)
    found = generate(drafter)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.warped_log_probs, plain.warped_log_probs, atol=1e-4)
    assert (found.stats.accepted.sum() > 0) == (k > 0)
    order = [4, 0, 5, 1, 3, 2]
    np.testing.assert_array_equal(generate(drafter, order).tokens, np.asarray(plain.tokens)[order])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[2], [5, 1, 1]])
def test_the_size_of_the_batch_does_not_matter(plain, rows):
    found = generate(MAKERS["model"](4), rows)
    np.testing.assert_array_equal(found.tokens, np.asarray(plain.tokens)[rows])


@pytest.mark.slow
def test_the_target_as_its_own_draft_is_always_accepted(plain):
    found = generate(jaxspec.ModelDrafter(TARGET, k=4), stop_tokens=[3])
    np.testing.assert_array_equal(found.stats.accepted, found.stats.drafted)
    assert found.stats.rounds.tolist() == [-(-int(n) // 5) for n in found.length]
    for row, count in enumerate(found.length.tolist()):
        np.testing.assert_array_equal(found.tokens[row, :count], plain.tokens[row, :count])
    assert len(set(found.length.tolist())) > 2


def test_other_keys_give_other_texts(plain):
    other = generate(None, keys=jax.random.split(jax.random.key(9), ROWS))
    assert (np.asarray(other.tokens) != np.asarray(plain.tokens)).any(axis=1).all()


@pytest.mark.slow
def test_a_transformer_too():
    target, draft = tiny.transformer(0), tiny.transformer(1)
    plain = generate(None, target=target)
    found = generate(jaxspec.ModelDrafter(draft, k=3), target=target)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
