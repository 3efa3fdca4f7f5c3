"""`TokenVerifier` keeps the target's distribution: enumerated exactly, over one round and over several."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core import random as keys
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.verifier import VerifierContract
from jaxspec.testing.enumeration.drafting import chain, drawn, guessed
from jaxspec.testing.enumeration.formulas import token_accepted
from jaxspec.testing.enumeration.rounds import deviation, emitted_probs, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.several_rounds import KeyNames, key_names, several_rounds
from jaxspec.testing.enumeration.tables import make_table, pair, total_variation
from jaxspec.verifiers.rejection import TokenVerifier, log_residual, next_log_probs
from tests._fixtures.pairs import PAIRS
from tests._fixtures.rules import token_rule

EXACT = 1e-9


def first(count):
    """Submits the first `count` drafts of a chain."""
    return lambda place: place.node < count


def periodic_guess(place):
    """A deterministic draft: some function of the text."""
    return (sum(place.text) + place.node) % 3


def always_two(place):
    return 2


class TestContract(VerifierContract):
    verifier = TokenVerifier()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_one_round_keeps_the_distribution(name, k):
    target, draft = pair(name, 3, k + 1)
    for valid in range(k + 1):
        round_ = enumerate_round(target, drawn(chain(k), draft, submitted=first(valid)), token_rule)
        assert deviation(round_, target, k + 1) < EXACT


@pytest.mark.parametrize("name", PAIRS)
def test_one_round_keeps_the_distribution_over_four_tokens(name):
    target, draft = pair(name, 4, 3, seed=1)
    assert deviation(enumerate_round(target, drawn(chain(2), draft), token_rule), target, 3) < EXACT


@pytest.mark.parametrize("name", ["full support", "zeros in the target", "certain target"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_round_keeps_the_distribution_of_certain_drafts(name, k):
    target, _ = pair(name, 3, k + 1)
    for valid, guess in itertools.product(range(k + 1), (periodic_guess, always_two)):
        drafter = guessed(chain(k), guess, 3, submitted=first(valid))
        assert deviation(enumerate_round(target, drafter, token_rule), target, k + 1) < EXACT


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_accepted_length(name, k):
    target, draft = pair(name, 3, k + 1)
    found = mean_accepted(enumerate_round(target, drawn(chain(k), draft), token_rule))
    assert found == pytest.approx(token_accepted(target, draft, k), abs=EXACT)


@functools.cache
def names_after(length: int, k: int) -> KeyNames:
    return key_names(TokenVerifier(), jax.random.key(3), length, k)


def rounds_deviate(target, drafter, length) -> float:
    """The total variation over several rounds that draw with the real keys."""
    names = lambda start: names_after(start, len(drafter.parents))
    found = several_rounds(target, drafter, token_rule, length=length, names=names)
    return total_variation(found, target.text_probs(length))


@pytest.mark.parametrize("name", PAIRS)
def test_three_rounds_keep_the_distribution_with_the_real_keys(name):
    target, draft = pair(name, 3, 4, seed=2)
    assert rounds_deviate(target, drawn(chain(1), draft), 3) < EXACT


@pytest.mark.parametrize("name", ["full support", "zeros in both"])
@pytest.mark.parametrize("k", [2, 3])
def test_rounds_of_several_drafts_keep_the_distribution_with_the_real_keys(name, k):
    target, draft = pair(name, 3, 3 + k, seed=3)
    assert rounds_deviate(target, drawn(chain(k), draft), 3) < EXACT


def test_a_draft_length_chosen_by_the_text_keeps_the_distribution():
    target, draft = pair("full support", 3, 5, seed=4)
    choose = lambda place: place.node < sum(place.text) % 3
    assert rounds_deviate(target, drawn(chain(2), draft, submitted=choose), 3) < EXACT


def test_certain_drafts_keep_the_distribution_over_three_rounds():
    target, _ = pair("full support", 3, 4, seed=5)
    assert rounds_deviate(target, guessed(chain(1), periodic_guess, 3), 3) < EXACT


def test_an_empty_residual_falls_back_to_the_target():
    probs = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    proposal = Proposal(jnp.array([[0]], jnp.int32), jnp.ones((1, 1), jnp.bool_), probs[:, None])
    found = next_log_probs(proposal, jnp.stack([probs, probs], axis=1), jnp.zeros(1, jnp.int32))
    np.testing.assert_array_equal(found, probs)


def test_the_residual_of_nearly_equal_distributions_keeps_its_small_parts():
    target = np.array([0.5 + 1e-9, 0.3, 0.2 - 1e-9])
    draft = np.array([0.5, 0.3, 0.2])
    with jax.enable_x64(True):
        found = np.exp(log_residual(jnp.log(jnp.asarray(target))[None], jnp.log(jnp.asarray(draft))[None]))
    np.testing.assert_allclose(found[0], [1e-9, 0, 0], rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class SmallestDraws(RoundKeys):
    """The worst case: uniforms so small that everything that can pass does."""

    uniform: float = 0.0

    def uniforms(self, count):
        return jnp.full((1, count), self.uniform, jnp.float32)

    def next_noise(self, vocab_size):
        return jnp.zeros((1, vocab_size), jnp.float32)


@pytest.mark.parametrize("uniform", [0.0, 1e-45, 0.5 * 2.0**-32])
def test_a_token_the_target_excludes_is_never_accepted(uniform):
    target = jnp.log(jnp.array([[[0.0, 0.6, 0.4]] * 2]))
    for draft in (None, jnp.log(jnp.array([[[0.9, 0.05, 0.05]]]))):
        proposal = Proposal(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.bool_), draft)
        verdict = TokenVerifier().verify(SmallestDraws(None, None, uniform), proposal, target)
        assert verdict.accepted.tolist() == [0]
        assert verdict.next_token.tolist() == [1]


def test_uniforms_lie_strictly_between_zero_and_one(monkeypatch):
    for bits in (0, 2**32 - 1):
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype, bits=bits: jnp.full(shape, bits, dtype))
        uniform = keys._uniform(jax.random.key(0), 1)
        assert 0 < uniform[0] < 1
        assert np.isfinite(keys._gumbel(jax.random.key(0), 1)).all()


def test_the_worked_example_of_a_dropped_draft():
    """Dropping low-confidence drafts after looking at them makes (.7, .3) into (.85, .15)."""
    target = make_table(2, 2, lambda: [0.7, 0.3])
    draft = make_table(2, 2, lambda: [0.5, 0.5])
    probs_of = lambda count: emitted_probs(
        enumerate_round(target, drawn(chain(1), draft, submitted=first(count)), token_rule)
    )
    kept, dropped = probs_of(1), probs_of(0)
    first_token = lambda probs, token: sum(chance for text, chance in probs.items() if text[0] == token)
    assert first_token(kept, 0) == pytest.approx(0.7)
    # Token 0 drafted (half the time): submitted, and kept. Token 1 drafted: withdrawn.
    assert 0.5 * 1.0 + 0.5 * first_token(dropped, 0) == pytest.approx(0.85)
