"""`BlockVerifier` keeps the target's distribution and accepts what the paper says: enumerated exactly."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.verifier import VerifierContract
from jaxspec.testing.enumeration.drafting import chain, drawn, guessed
from jaxspec.testing.enumeration.formulas import block_accepted, most_accepted, token_accepted
from jaxspec.testing.enumeration.rounds import deviation, emitted_probs, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.several_rounds import KeyNames, key_names, several_rounds
from jaxspec.testing.enumeration.tables import make_table, pair, total_variation
from jaxspec.verifiers.block import BlockVerifier, log_thresholds, next_log_probs
from jaxspec.verifiers.rejection import TokenVerifier
from tests._fixtures.pairs import PAIRS
from tests._fixtures.rules import block_rule, token_rule

EXACT = 1e-9
_verify = jax.jit(lambda verifier, *arguments: verifier.verify(*arguments))
_log_thresholds, _next_probs = jax.jit(log_thresholds), jax.jit(next_log_probs)


class TestContract(VerifierContract):
    verifier = BlockVerifier()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_one_round_keeps_the_distribution_at_every_length(name, k):
    target, draft = pair(name, 3, k + 1)
    for count in range(k + 1):
        drafter = drawn(chain(k), draft, submitted=lambda place, count=count: place.node < count)
        assert deviation(enumerate_round(target, drafter, block_rule), target, k + 1) < EXACT


@pytest.mark.parametrize("name", PAIRS)
def test_one_round_keeps_the_distribution_over_four_tokens(name):
    target, draft = pair(name, 4, 4, seed=1)
    assert deviation(enumerate_round(target, drawn(chain(3), draft), block_rule), target, 4) < EXACT


@pytest.mark.parametrize("name", PAIRS)
def test_a_length_that_follows_the_drafts_before_keeps_the_distribution(name):
    """It may depend on earlier drafts, never on the draft itself."""
    target, draft = pair(name, 3, 4)
    drafter = drawn(chain(3), draft, submitted=lambda place: sum(place.path) % 3 < 2)
    assert deviation(enumerate_round(target, drafter, block_rule), target, 4) < EXACT


@functools.cache
def names_after(length: int, k: int) -> KeyNames:
    return key_names(BlockVerifier(), jax.random.key(3), length, k)


def rounds_deviate(target, drafter, length) -> float:
    """The total variation over several rounds that draw with the real keys."""
    names = lambda start: names_after(start, len(drafter.parents))
    found = several_rounds(target, drafter, block_rule, length=length, names=names)
    return total_variation(found, target.text_probs(length))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [1, 2])
def test_three_rounds_keep_the_distribution_with_the_real_keys(name, k):
    target, draft = pair(name, 3, 3 + k, seed=2)
    assert rounds_deviate(target, drawn(chain(k), draft), 3) < EXACT


@pytest.mark.parametrize("name", ["full support", "zeros in both"])
def test_rounds_of_three_drafts_keep_the_distribution_with_the_real_keys(name):
    target, draft = pair(name, 3, 7, seed=3)
    assert rounds_deviate(target, drawn(chain(3), draft), 4) < EXACT


def test_a_draft_length_chosen_by_the_text_keeps_the_distribution():
    target, draft = pair("full support", 3, 6, seed=4)
    drafter = drawn(chain(3), draft, submitted=lambda place: place.node <= sum(place.text) % 3)
    assert rounds_deviate(target, drafter, 3) < EXACT


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_accepted_length(name, k):
    target, draft = pair(name, 3, k + 1)
    found = mean_accepted(enumerate_round(target, drawn(chain(k), draft), block_rule))
    assert found == pytest.approx(block_accepted(target, draft, k), abs=EXACT)
    assert token_accepted(target, draft, k) - EXACT <= found <= most_accepted(target, draft, k) + EXACT


def test_the_example_of_the_paper():
    target = make_table(2, 3, lambda: [1 / 3, 2 / 3])
    draft = make_table(2, 3, lambda: [2 / 3, 1 / 3])
    accepted = lambda rule: mean_accepted(enumerate_round(target, drawn(chain(2), draft), rule))
    assert accepted(token_rule) == pytest.approx(10 / 9, abs=EXACT)
    assert accepted(block_rule) == pytest.approx(11 / 9, abs=EXACT)
    assert most_accepted(target, draft, 2) == pytest.approx(12 / 9, abs=EXACT)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_certain_drafts_gain_nothing(k):
    """With their one-hot distributions written out, the block rule emits just what the token rule does."""
    target, draft = pair("certain draft", 3, k + 1)
    of_block, of_token = (enumerate_round(target, drawn(chain(k), draft), rule) for rule in (block_rule, token_rule))
    assert total_variation(emitted_probs(of_block), emitted_probs(of_token)) < EXACT
    guess = guessed(chain(k), lambda place: draft.probs(place.prefix).argmax(), 3)
    assert total_variation(emitted_probs(enumerate_round(target, guess, block_rule)), emitted_probs(of_token)) < EXACT


@pytest.mark.slow
def test_certain_drafts_are_verified_token_by_token():
    random = np.random.default_rng(0)
    target = jnp.log(jnp.asarray(random.dirichlet(np.ones(4), (500, 4)), jnp.float32))
    tokens, valid = jnp.argmax(target[:, :3], axis=-1).astype(jnp.int32), jnp.ones((500, 3), jnp.bool_)
    rng = BlockVerifier().rng(jax.random.split(jax.random.key(1), 500), jnp.full(500, 3, jnp.int32))
    found, expected = (_verify(v, rng, Proposal(tokens, valid), target) for v in (BlockVerifier(), TokenVerifier()))
    np.testing.assert_array_equal(found.accepted, expected.accepted)
    np.testing.assert_array_equal(found.next_token, expected.next_token)


def test_no_drafts_at_all():
    target = jnp.log(jnp.array([[[0.0, 1.0, 0.0]]] * 2))
    rng = BlockVerifier().rng(jax.random.split(jax.random.key(1), 2), jnp.ones(2, jnp.int32))
    for draft in (None, target[:, :0]):
        nothing = Proposal(jnp.zeros((2, 0), jnp.int32), jnp.zeros((2, 0), jnp.bool_), draft)
        verdict = _verify(BlockVerifier(), rng, nothing, target)
        assert verdict.accepted.tolist() == [0, 0]
        assert verdict.next_token.tolist() == [1, 1]


@dataclasses.dataclass(frozen=True)
class GivenUniforms(RoundKeys):
    """Draws whose uniforms are chosen; the next token is the most likely one."""

    values: tuple[float, ...] = ()

    def uniforms(self, count):
        return jnp.array([self.values], jnp.float32)

    def next_noise(self, vocab_size):
        return jnp.zeros((1, vocab_size), jnp.float32)


@pytest.mark.parametrize("uniform", [0.0, 1e-45, 0.5 * 2.0**-32])
@pytest.mark.parametrize("excluded", [0, 1])
def test_a_prefix_the_target_excludes_is_never_accepted(uniform, excluded):
    """Not at the worst of luck, and not though the target wants the other draft ten times as much."""
    target = np.full((1, 3, 3), [0.9, 0.05, 0.05])
    target[0, excluded] = [0.0, 0.6, 0.4]
    draft = jnp.log(jnp.array([[[0.09, 0.455, 0.455]] * 2]))
    proposal = Proposal(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), jnp.bool_), draft)
    with np.errstate(divide="ignore"):
        probs = jnp.asarray(np.log(target), jnp.float32)
    verdict = BlockVerifier().verify(GivenUniforms(None, None, values=(uniform,) * 2), proposal, probs)
    assert verdict.accepted.tolist() == [excluded]
    assert verdict.next_token.tolist() == [1]


@pytest.mark.slow
def test_a_refused_draft_is_rescued_by_the_next():
    probs = lambda *rows: jnp.log(jnp.array([rows]))
    target, draft = probs([0.25, 0.75], [0.8, 0.2], [0.5, 0.5]), probs([0.5, 0.5], [0.2, 0.8])
    proposal = Proposal(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), jnp.bool_), draft)
    np.testing.assert_allclose(np.exp(log_thresholds(proposal, target)), [[2 / 7, 1.0]], rtol=1e-6)
    verdict = BlockVerifier().verify(GivenUniforms(None, None, values=(0.9, 0.9)), proposal, target)
    assert verdict.accepted.tolist() == [2]


def test_equal_distributions_keep_all_drafts_and_fall_back_to_the_target():
    probs = jnp.log(jnp.array([[[0.5, 0.25, 0.25]] * 3]))
    proposal = Proposal(jnp.array([[0, 2]], jnp.int32), jnp.ones((1, 2), jnp.bool_), probs[:, :2])
    np.testing.assert_array_equal(_log_thresholds(proposal, probs), [[0.0, 0.0]])
    for accepted in range(3):
        np.testing.assert_array_equal(_next_probs(proposal, probs, jnp.array([accepted], jnp.int32)), probs[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3])
def test_nearly_equal_distributions_in_float32_keep_nearly_all(k):
    """Where residual and `1 - P` are both rounding errors, no draft is lost by them."""
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.normal(size=(2000, k + 1, 50)), jnp.float32)
    noise = jnp.asarray(random.normal(size=logits.shape) * 1e-6, jnp.float32)
    target, draft = jax.nn.log_softmax(logits), jax.nn.log_softmax(logits + noise)[:, :k]
    tokens = jax.random.categorical(jax.random.key(0), draft).astype(jnp.int32)
    proposal = Proposal(tokens, jnp.ones(tokens.shape, jnp.bool_), draft)
    rng = BlockVerifier().rng(jax.random.split(jax.random.key(1), 2000), jnp.full(2000, 3, jnp.int32))
    verdict = _verify(BlockVerifier(), rng, proposal, target)
    assert (np.asarray(verdict.accepted) == k).all()


def test_a_distribution_of_nan_behind_good_drafts_does_not_reach_them():
    """The result is as if the row had submitted only the drafts before it."""
    random = np.random.default_rng(0)
    target, draft = (jnp.log(jnp.asarray(random.dirichlet(np.ones(4), (50, n)), jnp.float32)) for n in (4, 3))
    tokens = jnp.asarray(random.integers(4, size=(50, 3)), jnp.int32)
    broken = Proposal(tokens, jnp.ones((50, 3), jnp.bool_), draft.at[:, 1].set(jnp.nan))
    short = Proposal(tokens, jnp.tile(jnp.array([[True, False, False]]), (50, 1)), draft)
    np.testing.assert_allclose(_log_thresholds(broken, target)[:, 0], _log_thresholds(short, target)[:, 0], rtol=1e-5)
    assert (_log_thresholds(broken, target)[:, 1:] == -jnp.inf).all()
    for accepted in range(2):
        at = jnp.full(50, accepted, jnp.int32)
        np.testing.assert_array_equal(_next_probs(broken, target, at), _next_probs(short, target, at))
