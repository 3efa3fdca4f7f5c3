"""`Report(kept_mass=True)`: the mass that truncation keeps, with which log-probabilities without it follow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import Report
from jaxspec.processors import LogitBias
from jaxspec.testing.history_models import history_model, nearby

VOCAB, NEW = 7, 8
TARGET = history_model(2, vocab=VOCAB)
PROMPT = jnp.asarray([[1, 2, 3], [4, 1, 0], [5, 6, 2]], jnp.int32)
BIAS = np.array([0, 0, -np.inf, 0, 0, 1.5, 0])
POLICY = jaxspec.Sampling(
    jnp.asarray([0.8, 0.0, 1.3]), top_k=4, top_p=0.7, processors=(LogitBias.of({2: -np.inf, 5: 1.5}),)
)


def generate(policy, drafter=None, **options):
    options = {"report": Report(kept_mass=True), "max_new_tokens": NEW, "key": jax.random.key(1)} | options
    return jaxspec.generate(TARGET, drafter, PROMPT, sampling=policy, **options)


@pytest.mark.parametrize("name", [pytest.param("several drafts", marks=pytest.mark.slow), "plain"])
def test_with_it_the_log_probabilities_without_truncation_follow(name):
    """Against whole passes in float64, for rows of other temperatures; 0 counts as 1."""
    drafter = jaxspec.TreeDrafter(nearby(TARGET, 0.7), jaxspec.Tree((-1, -1, 0, 0, 1)))
    result = generate(POLICY, None if name == "plain" else drafter)
    assert result.reported.logits is None and result.reported.tokens is None
    found = np.asarray(result.warped_log_probs + result.reported.log_kept_mass, np.float64)
    for row, temperature in enumerate((0.8, 1.0, 1.3)):
        text = jnp.concatenate([PROMPT[row], result.tokens[row]])[None]
        logits = np.asarray(TARGET(text, TARGET.init_cache(1, 32)).logits[0, 2:-1], np.float64) + BIAS
        scaled = logits / temperature
        expected = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
        expected = expected[np.arange(NEW), np.asarray(result.tokens[row])]
        np.testing.assert_allclose(found[row], expected, atol=1e-5)
    assert (np.asarray(result.reported.log_kept_mass) < 0).all()


@pytest.mark.slow
def test_nothing_is_lost_without_truncation():
    """Not even to rounding: the ratio of a trainer is 1."""
    plain = dataclasses.replace(POLICY, top_k=None, top_p=None, temperature=0.9, processors=())
    np.testing.assert_array_equal(generate(plain).reported.log_kept_mass, 0)


@pytest.mark.slow
def test_a_greedy_policy_keeps_the_most_likely_token():
    result = generate(jaxspec.Greedy(), jaxspec.NGramDrafter(k=3, min_ngram=1))
    np.testing.assert_allclose(result.reported.log_kept_mass, result.log_probs, atol=1e-6)


def test_a_policy_without_a_temperature_is_refused():
    @jaxspec.core.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Custom:
        greedy = False

        def log_probs(self, logits):
            return jax.nn.log_softmax(logits)

    with pytest.raises(TypeError, match="kept_mass needs the temperature of the policy, and Custom need not have one"):
        generate(Custom())
    with pytest.raises(TypeError, match="kept_mass"):
        generate(POLICY, report=Report(kept_mass=1))
