"""Results returned with the tokens: the target's own alternatives and logits, for any drafter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import Report
from jaxspec.processors import LogitBias
from jaxspec.testing.history_models import history_model, nearby

VOCAB, NEW = 7, 9
TARGET = history_model(2, vocab=VOCAB)
DRAFT = nearby(TARGET, 0.7)
PROMPT, LENGTHS = jnp.asarray([[1, 2, 3], [4, 1, 0]], jnp.int32), np.array([3, 2])
POLICY = jaxspec.Sampling(0.8, top_k=4, processors=(LogitBias.of({2: -np.inf, 5: 1.5}),))
DRAFTERS = {
    "plain": None,
    "model": jaxspec.ModelDrafter(DRAFT, k=3),
    "n-gram": jaxspec.NGramDrafter(k=3, min_ngram=1),
    "tree": jaxspec.TreeDrafter(DRAFT, jaxspec.Tree((-1, -1, 0, 0, 1))),
}
QUICK = (("tree", POLICY),)


def generate(drafter, policy, **options):
    options = {"report": Report(alternatives=3, logits=True), "max_new_tokens": np.array([NEW, 5])} | options
    options |= {"key": jax.random.key(1), "sampling": policy, "prompt_length": LENGTHS}
    return jaxspec.generate(TARGET, drafter, PROMPT, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, id=f"{name}-{type(policy).__name__}", marks=[pytest.mark.slow] * slow)
        for name in DRAFTERS
        for policy in (POLICY, jaxspec.Greedy())
        for slow in [not any(name == quick and policy is own for quick, own in QUICK)]
    ],
)
def test_they_are_those_of_whole_passes(name, policy):
    result = generate(DRAFTERS[name], policy)
    for row, count in enumerate((NEW, 5)):
        text = jnp.concatenate([PROMPT[row, : LENGTHS[row]], result.tokens[row, :count]])[None]
        whole = np.asarray(TARGET(text, TARGET.init_cache(1, 32)).logits[0, LENGTHS[row] - 1 :], np.float64)
        for place in range(count):
            logits = whole[place]
            np.testing.assert_allclose(result.reported.logits[row, place], logits, atol=1e-4)
            log_probs = logits - np.log(np.exp(logits).sum())
            best = np.argsort(-logits, kind="stable")[:3]
            assert result.reported.tokens[row, place].tolist() == best.tolist()
            np.testing.assert_allclose(result.reported.log_probs[row, place], log_probs[best], atol=1e-4)
            np.testing.assert_allclose(
                result.reported.warped_log_probs[row, place], warped(logits, policy)[best], atol=1e-4
            )
    assert not np.asarray(result.reported.logits[1, 5:]).any() and not np.asarray(result.reported.tokens[1, 5:]).any()


def warped(logits, policy):
    if policy.greedy:
        return np.where(np.arange(VOCAB) == np.argmax(logits), 0.0, -np.inf)
    scores = (logits + np.array([0, 0, -np.inf, 0, 0, 1.5, 0])) / 0.8
    scores = np.where(scores >= np.sort(scores)[-4], scores, -np.inf)
    return scores - np.log(np.exp(scores).sum())


@pytest.mark.slow
def test_nothing_is_returned_that_was_not_asked_for():
    result = generate(None, jaxspec.Greedy(), report=Report())
    assert result.reported is None
    assert generate(None, jaxspec.Greedy(), report=Report(alternatives=2)).reported.logits is None
    assert generate(None, jaxspec.Greedy(), report=Report(logits=True)).reported.tokens is None


@pytest.mark.slow
def test_under_vmap_and_in_the_caller_s_loop():
    write = lambda key: jaxspec.generate(
        TARGET, None, PROMPT, key=key, sampling=POLICY, report=Report(alternatives=2), max_new_tokens=4
    )
    keys = jax.random.split(jax.random.key(0), 3)
    mapped = jax.vmap(write)(keys)
    np.testing.assert_array_equal(mapped.reported.tokens[1], write(keys[1]).reported.tokens)
    options = {"report": Report(alternatives=2), "max_new_tokens": 4}
    state, step = jaxspec.init(TARGET, DRAFTERS["model"], PROMPT, **options), jaxspec.jit_step()
    while not state.done.all():
        state, _ = step(TARGET, DRAFTERS["model"], None, state)
    plain = jaxspec.generate(TARGET, None, PROMPT, **options)
    np.testing.assert_array_equal(jaxspec.finish(state).reported.tokens, plain.reported.tokens)


@pytest.mark.parametrize(
    ("report", "error", "text"),
    [
        (Report(alternatives=8), ValueError, "alternatives must be between 0 and 7, got 8"),
        (Report(alternatives=-1), ValueError, "alternatives must be between 0 and 7, got -1"),
    ],
)
def test_what_is_not_there_is_refused(report, error, text):
    with pytest.raises(error, match=text):
        generate(None, jaxspec.Greedy(), report=report)


def test_a_number_of_numpy_is_a_number():
    assert Report(alternatives=np.int64(2)).check(7) is None and Report(alternatives=np.int64(2)) == Report(2)
