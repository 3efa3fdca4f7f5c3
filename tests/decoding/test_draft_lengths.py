"""Losslessness under every draft length, through the whole of `generate`.

Monte Carlo with fixed seeds; `statistics.FALSE_ALARM` over all tests here states how often a
correct program would fail under new ones.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import Fixed
from jaxspec.draft_length.early_stop import ConfidenceStop, EntropyStop
from jaxspec.testing.history_models import history_model, history_probs, nearby
from jaxspec.testing.statistics import same_distribution
from jaxspec.verifiers.block import BlockVerifier

VOCAB, ROWS, LENGTH, K = 3, 60_000, 4, 3
TARGET = history_model(2, vocab=VOCAB)
DRAFT = nearby(TARGET, 0.7)
TEXT = (1, 0, 2, 1, 0)
# Each decides often, and within four tokens.
DRAFT_LENGTHS = {
    "confidence": ConfidenceStop((1, 2, K), threshold=0.5),
    "entropy": EntropyStop((0, 1, K), threshold=0.55, step=1.0, smoothing=0.8),
    "adaptive": Adaptive((1.0, 1.3, 1.9), (0, 1, K), rate=0.9, period=1),
}
DRAFTERS = {name: jaxspec.ModelDrafter(DRAFT, k=length) for name, length in DRAFT_LENGTHS.items()}
DRAFTERS["ngram, adaptive"] = jaxspec.NGramDrafter(k=DRAFT_LENGTHS["adaptive"], min_ngram=1)


def generate(drafter, *, rows=ROWS, length=LENGTH, seed=0, **options):
    return jaxspec.generate(
        TARGET,
        drafter,
        jnp.broadcast_to(jnp.array(TEXT, jnp.int32), (rows, len(TEXT))),
        key=jax.random.key(seed),
        sampling=jaxspec.Sampling(),
        max_new_tokens=length,
        **options,
    )


def joint_probs() -> np.ndarray:
    probs = [
        np.prod([history_probs(TARGET, TEXT + text[:i])[text[i]] for i in range(LENGTH)])
        for text in itertools.product(range(VOCAB), repeat=LENGTH)
    ]
    return np.array(probs)


CASES = {
    "confidence": jaxspec.TokenVerifier(),
    "entropy": BlockVerifier(),
    "adaptive": BlockVerifier(),
    "ngram, adaptive": jaxspec.TokenVerifier(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_joint_distribution_of_four_tokens(name):
    result = generate(DRAFTERS[name], verifier=CASES[name])
    counts = np.asarray(result.tokens) @ VOCAB ** np.arange(LENGTH - 1, -1, -1)
    same_distribution(joint_probs(), np.bincount(counts, minlength=VOCAB**LENGTH), tests=len(CASES))
    assert 0 < result.stats.acceptance_rate < 1
    # Rounds of the same text drafted different numbers of tokens.
    assert 0 < result.stats.drafted_at[:, -1].sum() < result.stats.drafted_at[:, 0].sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name == "adaptive" else pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS]
)
def test_coupled_tokens_are_those_of_plain_decoding(name):
    options = {"rows": 20, "length": 40, "verifier": jaxspec.CoupledVerifier()}
    plain = generate(None, **options)
    found = generate(DRAFTERS[name], **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.accepted.sum() > 0


def test_an_integer_is_a_fixed_draft_length():
    """The value is kept as passed; both stand for the same number of drafts."""
    for given in (K, Fixed(K)):
        for drafter in (jaxspec.ModelDrafter(DRAFT, k=given), jaxspec.NGramDrafter(k=given)):
            assert drafter.k == given and drafter.draft_length == Fixed(K) and drafter.max_drafts == K
