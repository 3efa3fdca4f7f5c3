"""The returned log-probabilities are those of one full pass over the finished text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.base import NoDrafter
from tests._fixtures import tiny

TARGET = tiny.transformer(0)
LENGTH = np.array([5, 1, 3])
PROMPT = np.random.default_rng(1).integers(0, tiny.VOCAB, (3, 5))
SAMPLING = jaxspec.Sampling(jnp.array([0.7, 1.0, 1.4]), top_p=0.95, top_k=8)


# Another model drafts, so later siblings are accepted too, and only theirs have children.
DRAWN = jaxspec.TreeDrafter(
    tiny.transformer(1), jaxspec.Tree((-1, -1, -1, 1, 2, 3)), draw=jaxspec.drafters.WithoutReplacement()
)
DRAFTERS = {
    "plain": NoDrafter(),
    "model": jaxspec.ModelDrafter(tiny.transformer(1), k=3),
    "drawn tree": DRAWN,
    "dynamic tree": jaxspec.drafters.DynamicTreeDrafter(TARGET, top_k=2, depth=3, nodes=6),
    "union": jaxspec.contrib.UnionDrafter((jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(TARGET, k=3))),
}


# Chains are verified like trees, and other trees like the drawn one.
MORE = ("model", "dynamic tree", "union")
CASES = [
    pytest.param(drafter, id=name, marks=[pytest.mark.slow] if name in MORE else [])
    for name, drafter in DRAFTERS.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", CASES)
@pytest.mark.parametrize(
    "sampling",
    [pytest.param(SAMPLING, id="sampled"), pytest.param(jaxspec.Greedy(), id="greedy", marks=pytest.mark.slow)],
)
def test_against_a_full_pass(drafter, sampling):
    result = jaxspec.generate(
        TARGET,
        drafter,
        jnp.asarray(PROMPT),
        prompt_length=jnp.asarray(LENGTH),
        key=jax.random.key(0),
        sampling=sampling,
        max_new_tokens=12,
        stop_tokens=[2],
    )
    # A token that the policy leaves out ends its row, and would hide what is compared below.
    assert not np.asarray(result.status).any()
    texts = np.zeros((3, 17), np.int32)
    for row in range(3):
        text = PROMPT[row, : LENGTH[row]].tolist() + result.tokens[row, : result.length[row]].tolist()
        texts[row, : len(text)] = text
    raw, warped = full_pass(jnp.asarray(texts), sampling)
    for row in range(3):
        count = int(result.length[row])
        at = LENGTH[row] - 1 + np.arange(count)
        tokens = np.asarray(result.tokens[row, :count])
        np.testing.assert_allclose(result.log_probs[row, :count], raw[row, at, tokens], atol=1e-4)
        np.testing.assert_allclose(result.warped_log_probs[row, :count], warped[row, at, tokens], atol=1e-4)
        assert not result.log_probs[row, count:].any() and not result.warped_log_probs[row, count:].any()
        assert np.isfinite(result.warped_log_probs[row]).all()
    np.testing.assert_allclose(result.total_log_prob(), np.sum(result.log_probs, axis=1), rtol=1e-6)
    np.testing.assert_allclose(result.total_log_prob(warped=True), np.sum(result.warped_log_probs, axis=1), rtol=1e-6)


@jax.jit
def full_pass(texts, sampling):
    logits = TARGET(texts, TARGET.init_cache(*texts.shape)).logits
    return jax.nn.log_softmax(logits), sampling.log_probs(logits)
