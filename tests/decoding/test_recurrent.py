"""Targets with a recurrence, whose caches fold in accepted tokens and cannot roll back: alone, and with attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import prefill, room_for
from jaxspec.testing.contracts.model import ModelContract
from jaxspec.verifiers.table import VERIFIERS
from tests._fixtures import recurrent, tiny
from tests._fixtures.contract_tests import MODEL_VARIANT_TESTS

RECURRENT, HYBRID = recurrent.recurrent_model(0), recurrent.hybrid_model(0)
TARGETS = {"recurrent": RECURRENT, "hybrid": HYBRID}
BOTH = ["recurrent", pytest.param("hybrid", marks=pytest.mark.slow)]
DRAFT = tiny.transformer(6, layers=1)
LOOKUP = jaxspec.NGramDrafter(k=3, min_ngram=1)
DRAFTERS = {
    "ngram": LOOKUP,
    "suffix": jaxspec.SuffixDrafter(k=4),
    "model": jaxspec.ModelDrafter(DRAFT, k=2),
    "adaptive": jaxspec.ModelDrafter(DRAFT, k=jaxspec.draft_length.Adaptive((1.0, 1.3, 1.9), lengths=(0, 1, 3))),
    "hybrid": jaxspec.HybridDrafter(LOOKUP, jaxspec.ModelDrafter(DRAFT, k=2)),
}
SLOW = ("suffix", "model", "adaptive")
# Prompts of seven tokens and of one, of which a pass of three tokens ends after the last, and within.
LENGTHS = np.array([7, 1, 4, 5])
PROMPT = np.random.default_rng(1).integers(0, tiny.VOCAB, (4, 7))
MOST = 20


class TestRecurrent(ModelContract):
    slow_tests = ("test_ragged_chunks_give_the_logits_of_the_whole",)
    model = RECURRENT
    takes_trees = False


class TestHybrid(ModelContract):
    quick_tests = MODEL_VARIANT_TESTS[:1]
    model = HYBRID
    takes_trees = False
    captures = True


def generate(target, drafter, **options):
    options = {"prompt_length": jnp.asarray(LENGTHS), "max_new_tokens": MOST} | options
    return jaxspec.generate(target, drafter, jnp.asarray(PROMPT, jnp.int32), **options)


@functools.cache
def plain(name):
    return generate(TARGETS[name], None)


def test_plain_decoding_is_that_of_the_formula():
    for row, length in enumerate(LENGTHS):
        text = PROMPT[row, :length].tolist()
        for _ in range(MOST):
            text.append(int(np.argmax(recurrent.next_logits(RECURRENT, text))))
        assert np.asarray(plain("recurrent").tokens)[row].tolist() == text[length:]


@pytest.mark.parametrize("width", [1, 3, 5, 7])
def test_a_prompt_is_fed_once_and_each_row_keeps_its_own(width):
    """A last chunk is not moved back, and a short row forgets the padding it was fed alongside longer ones."""
    tokens, length = jnp.asarray(PROMPT[:, :width], jnp.int32), np.minimum(LENGTHS, width)
    cache = RECURRENT.init_cache(4, room_for(RECURRENT, width))
    cache = jax.jit(prefill)(RECURRENT, tokens, jnp.asarray(length), cache).cache
    assert cache.length.tolist() == (length - 1).tolist()
    assert cache.inputs.shape[2] == 0  # nothing is kept but the average
    for row in range(4):
        found = cache.averages[0, row] @ RECURRENT.head
        np.testing.assert_allclose(found, recurrent.next_logits(RECURRENT, PROMPT[row, : length[row] - 1]), atol=1e-5)


@pytest.mark.slow
def test_after_each_round_the_average_is_that_of_the_text():
    """This holds for rows that have ended too, while others go on."""
    drafter = DRAFTERS["hybrid"]  # whose model drafts in the first round, wrongly
    budget = jnp.asarray([MOST, 3, 8, MOST])
    state = jaxspec.init(
        RECURRENT, drafter, jnp.asarray(PROMPT, jnp.int32), prompt_length=jnp.asarray(LENGTHS), max_new_tokens=budget
    )
    advance = jaxspec.jit_step()
    for _ in range(8):
        state, _ = advance(RECURRENT, drafter, None, state)
        for row, length in enumerate(np.asarray(state.length)):
            expected = recurrent.next_logits(RECURRENT, np.asarray(state.tokens)[row, : length - 1])
            np.testing.assert_allclose(state.cache.averages[0, row] @ RECURRENT.head, expected, atol=1e-4)
    assert state.stats.accepted.sum() > 0 and state.done.any()


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["hybrid", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ngram", "model"))])
@pytest.mark.parametrize("name", BOTH)
def test_drafts_change_no_token(name, drafter):
    found = generate(TARGETS[name], DRAFTERS[drafter])
    np.testing.assert_array_equal(found.tokens, plain(name).tokens)
    np.testing.assert_allclose(found.log_probs, plain(name).log_probs, atol=1e-4)
    assert found.stats.drafted.sum() > found.stats.accepted.sum()
    if drafter != "model":
        assert found.stats.accepted.sum() > 0


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "verifier",
    [
        pytest.param(name, marks=[] if name in ("token", "coupled") else pytest.mark.slow)
        for name, kind in VERIFIERS.items()
        if kind.lossless
    ],
)
def test_every_lossless_verifier_changes_no_token(name, verifier):
    verifier = VERIFIERS[verifier]()
    try:
        verifier.check(LOOKUP)
    except (TypeError, ValueError):
        pytest.skip("takes no chains")
    np.testing.assert_array_equal(generate(TARGETS[name], LOOKUP, verifier=verifier).tokens, plain(name).tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter", ["hybrid", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ngram", "model"))]
)
@pytest.mark.parametrize("name", BOTH)
def test_coupled_sampling_gives_the_tokens_of_plain_sampling(name, drafter):
    options = {"sampling": jaxspec.Sampling(temperature=0.8), "key": jax.random.key(3)}
    without = generate(TARGETS[name], None, verifier=jaxspec.CoupledVerifier(), **options)
    found = generate(TARGETS[name], DRAFTERS[drafter], verifier=jaxspec.CoupledVerifier(), **options)
    np.testing.assert_array_equal(found.tokens, without.tokens)
    assert found.stats.accepted.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_within_the_callers_jit_and_of_several_answers(name):
    alone = jax.jit(lambda target: generate(target, LOOKUP).tokens)(TARGETS[name])
    np.testing.assert_array_equal(alone, plain(name).tokens)
    answers = generate(TARGETS[name], LOOKUP, answers=2)
    np.testing.assert_array_equal(answers.tokens, np.repeat(plain(name).tokens, 2, axis=0))


@pytest.mark.parametrize("name", BOTH)
def test_scores_are_those_of_generate(name):
    found, rows = plain(name), np.arange(4)[:, None]
    text = np.zeros((4, PROMPT.shape[1] + MOST), np.int32)
    at = LENGTHS[:, None] + np.arange(MOST)
    text[:, : PROMPT.shape[1]] = PROMPT
    text[rows, at] = found.tokens
    scores = jaxspec.score(TARGETS[name], text, length=LENGTHS + MOST, prompt_length=LENGTHS)
    np.testing.assert_allclose(np.asarray(scores.log_probs)[rows, at], found.log_probs, atol=1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_what_it_cannot_do_is_said(name):
    attending, model = tiny.transformer(0), TARGETS[name]
    for drafter in (
        jaxspec.ModelDrafter(model, k=2),
        jaxspec.HybridDrafter(LOOKUP, jaxspec.ModelDrafter(model, k=2)),
        jaxspec.contrib.CascadeDrafter(model, LOOKUP, k=2),
    ):
        with pytest.raises(TypeError, match="rolls back its drafts, .* pass another draft model"):
            generate(attending, drafter)
    with pytest.raises(TypeError, match="drafts a tree"):
        generate(model, jaxspec.TreeDrafter(DRAFT, jaxspec.Tree.of_size(4)))
    with pytest.raises(TypeError, match="stops and resumes"):
        generate(model, jaxspec.EarlyExitDrafter(layers=1, k=2))
    with pytest.raises(TypeError, match="KVCache"):
        generate(model, jaxspec.contrib.SparseCacheDrafter(k=2))
