"""Options of a call for drafting change the drafts, and no distribution."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import history_model, nearby
from jaxspec.verifiers.rejection import TokenVerifier

TARGET = history_model(2, vocab=7)
DRAFT = nearby(TARGET, 0.7)
PROMPT, KEY = jnp.asarray([[1, 2, 3], [4, 1, 5], [2, 2, 6]], jnp.int32), jax.random.key(1)
WARM = jaxspec.Sampling(0.9)
NGRAM = jaxspec.NGramDrafter(k=4, min_ngram=1)
DRAFTERS = {
    "model": lambda k: jaxspec.ModelDrafter(DRAFT, k=k),
    "n-gram": lambda k: jaxspec.NGramDrafter(k=k, min_ngram=1),
    "suffix": lambda k: jaxspec.SuffixDrafter(k=k),
}


def generate(drafter, policy=WARM, **options):
    options = {"key": KEY, "sampling": policy, "max_new_tokens": 14} | options
    return jaxspec.generate(TARGET, drafter, PROMPT, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", *(pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS)])
def test_each_row_drafts_as_with_a_drafter_of_so_many(name):
    """Draws are keyed by their place: a row of at most two drafts is that of a drafter with k=2."""
    most = [0, 1, 2]
    found = generate(DRAFTERS[name](3), verifier=TokenVerifier(), max_drafts=most)
    for row, k in enumerate(most):
        alone = generate(DRAFTERS[name](k), verifier=TokenVerifier())
        np.testing.assert_array_equal(found.tokens[row], alone.tokens[row])
        assert int(found.stats.drafted[row]) == int(alone.stats.drafted[row])
    assert found.stats.drafted[2] > found.stats.drafted[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        jaxspec.TreeDrafter(DRAFT, jaxspec.Tree((-1, -1, 0, 0, 2))),
        jaxspec.drafters.DynamicTreeDrafter(DRAFT, top_k=2, depth=3, nodes=6),
        jaxspec.HybridDrafter(NGRAM, jaxspec.ModelDrafter(DRAFT, k=3)),
        jaxspec.ModelDrafter(DRAFT, k=jaxspec.Adaptive((1.0, 1.1, 1.2, 1.3), (0, 1, 2, 3))),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_others_draft_no_more_and_write_the_same(drafter):
    plain = generate(None, verifier=jaxspec.CoupledVerifier())
    found = generate(drafter, verifier=jaxspec.CoupledVerifier(), max_drafts=[0, 1, 2])
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.drafted[0] == 0 and found.stats.drafted[1] > 0
    assert not np.asarray(found.stats.drafted_at)[1, 1:].any() and not np.asarray(found.stats.drafted_at)[2, 2:].any()


@pytest.mark.slow
def test_a_limit_that_is_traced():
    limited = jax.jit(lambda most: generate(DRAFTERS["model"](3), max_drafts=most).stats.drafted)
    assert limited(jnp.asarray([0, -3, 1])).tolist()[:2] == [0, 0]
    assert limited(jnp.asarray([0, 1, 9]))[2] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        NGRAM,
        pytest.param(jaxspec.SuffixDrafter(k=4), marks=pytest.mark.slow),
        pytest.param(jaxspec.HybridDrafter(NGRAM, jaxspec.ModelDrafter(DRAFT, k=4)), marks=pytest.mark.slow),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_a_right_prediction_is_accepted_from_the_first_token_on(drafter):
    plain = generate(None, jaxspec.Greedy())
    own = np.array(plain.tokens)
    own[2] = -1  # a row of none
    found = generate(drafter, jaxspec.Greedy(), prediction=own)
    without = generate(drafter, jaxspec.Greedy())
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    # Of 14 tokens with four drafts a round.
    assert found.stats.rounds.tolist()[:2] == [3, 3] or drafter is not NGRAM
    assert (np.asarray(found.stats.rounds) <= np.asarray(without.stats.rounds)).all()
    assert found.stats.rounds[:2].sum() < without.stats.rounds[:2].sum()
    assert found.stats.rounds[2] == without.stats.rounds[2]


@pytest.mark.slow
def test_a_wrong_prediction_costs_drafts_and_changes_nothing():
    policy, verifier = jaxspec.Sampling(1.0), jaxspec.CoupledVerifier()
    plain = generate(None, policy, verifier=verifier)
    found = generate(NGRAM, policy, verifier=verifier, prediction=[0, 1, 2, 3, 4, 5, 6, 0])
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert (np.asarray(found.stats.drafted) > 0).all()


@pytest.mark.slow
def test_a_part_of_a_prediction_is_found_again():
    """After a place where the answer differs, two tokens that agree are enough."""
    plain = np.asarray(generate(None, jaxspec.Greedy(), max_new_tokens=40).tokens)
    edited = plain.copy()
    edited[:, 6] = (edited[:, 6] + 1) % 7
    run = lambda **options: generate(NGRAM, jaxspec.Greedy(), max_new_tokens=40, **options).stats.rounds
    assert run(prediction=edited).sum() < run().sum()


BAD = [
    ({"max_drafts": -1}, ValueError, "max_drafts must be at least 0, got -1; 0 means plain decoding"),
    ({"max_drafts": [1, 2]}, ValueError, "max_drafts must be one integer or one per row, got shape (2,) for 3 rows"),
    ({"max_drafts": 1.5}, ValueError, "max_drafts must be an integer of at least 0, got dtype"),
    ({"drafter": None, "max_drafts": 1}, ValueError, "max_drafts concerns drafts, but there is no drafter"),
    ({"drafter": None, "prediction": [1]}, ValueError, "prediction concerns drafts, but there is no drafter"),
    (
        {"drafter": DRAFTERS["model"](2), "prediction": [1]},
        ValueError,
        "prediction needs a drafter that copies, and ModelDrafter does not; pass NGramDrafter() or SuffixDrafter()",
    ),
    ({"prediction": [[1, 2]]}, ValueError, "prediction must be [p] or [batch, p], got shape (1, 2) for 3 rows"),
    ({"prediction": [1.5]}, ValueError, "prediction must be token ids, got dtype"),
    ({"prediction": [1, 7]}, ValueError, "prediction must be in [0, 7), or -1 for padding, got [1, 7]"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_what_does_not_fit_is_said(options, error, text):
    options = {"drafter": NGRAM} | options
    with pytest.raises(error, match=re.escape(text)):
        generate(**options)


@pytest.mark.slow
def test_a_prediction_of_nothing():
    assert generate(NGRAM, prediction=[]).tokens.tolist() == generate(NGRAM).tokens.tolist()
