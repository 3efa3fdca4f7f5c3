"""The walk up: any lossless rule of one position, lifted to trees; with rejection on a chain, block verification."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.tree_verifier import EXACT
from jaxspec.testing.enumeration.drafting import chain, chains, drawn, drawn_without_replacement, enumerate_drafts
from jaxspec.testing.enumeration.rounds import deviation, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.rules import evaluate, probabilities, walk_rule
from jaxspec.testing.enumeration.tables import pair
from jaxspec.verifiers import block
from jaxspec.verifiers.k_seq import KSequence, log_factor
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.traversal import LocalRejection, descend
from jaxspec.verifiers.upward_walk import LiftedVerifier, LocalRule, walk_up
from tests._fixtures.pairs import PAIRS


@dataclasses.dataclass(frozen=True)
class LocalKSequence(LocalRule):
    """K-SEQ for a target that may fail: every candidate has one scaled ratio, and the last leaves the residual."""

    def log_acceptance(self, offer):
        gain = offer.residual_at_token() - self._log_factor(offer) - offer.draft_at_token()
        return jnp.minimum(offer.log_ratio + gain, 0.0)

    def after_rejection(self, offer):
        defective, count = offer.log_ratio[:, None] + offer.residual(), _count(offer).astype(jnp.float64)[:, None]
        accepted = jnp.minimum(offer.draft(), defective - self._log_factor(offer)[:, None])
        beta = jnp.sum(jnp.exp(accepted), axis=1, keepdims=True)
        share = jnp.where(beta > 0, (1 - (1 - beta) ** count) / jnp.where(beta > 0, beta, 1), count)
        return when_last(offer, log_residual(defective, accepted + jnp.log(share)))

    def _log_factor(self, offer):
        return log_factor(offer.log_ratio[:, None] + offer.residual(), offer.draft(), _count(offer))


@dataclasses.dataclass(frozen=True)
class Forgetful(LocalKSequence):
    """Takes each candidate for the only one."""

    def _log_factor(self, offer):
        return jnp.zeros_like(offer.log_ratio)


def _count(offer):
    return jnp.sum(offer.siblings(), axis=1, dtype=jnp.int32)


def when_last(offer, rest):
    """The ratio and the residual, with `rest` after the last child and as they were before."""
    mass, fails = jnp.sum(jnp.exp(rest), axis=1), -jnp.expm1(offer.log_ratio)
    last = ~jnp.any(offer.waiting(), axis=1)
    ratio = jnp.where(mass + fails > 0, jnp.log(mass) - jnp.log(mass + fails), 0.0)
    residual = jnp.where((mass > 0)[:, None], rest - jnp.log(mass)[:, None], offer.residual())
    return jnp.where(last, ratio, offer.log_ratio), jnp.where(last[:, None], residual, offer.residual())


def k_sequence(*args):
    return walk_up(LocalKSequence(), *args)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("parents", [(-1, -1), chains(2, 2), (-1, -1, 0, 0)])
def test_a_rule_of_one_position_is_lifted(name, parents):
    target, draft = pair(name, 3, 3, seed=3)
    drafter = drawn(parents, draft)
    found = enumerate_round(target, drafter, walk_rule(k_sequence))
    assert deviation(found, target, 3) < EXACT
    if max(parents) < 0:
        down = enumerate_round(target, drafter, walk_rule(KSequence().descend))
        assert mean_accepted(found) == pytest.approx(mean_accepted(down), abs=EXACT)


@pytest.mark.slow
def test_a_rule_that_is_not_lossless_is_not_when_lifted():
    target, draft = pair("full support", 3, 3, seed=3)
    found = enumerate_round(target, drawn((-1, -1), draft), walk_rule(lambda *args: walk_up(Forgetful(), *args)))
    assert deviation(found, target, 2) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [1, 3])
def test_on_a_chain_the_thresholds_and_residuals_are_those_of_block_verification(name, k):
    """A uniform of 1 fails everywhere, so that the walk passes and compares every node."""
    target, draft = pair(name, 3, k + 1, seed=5)
    drafts = enumerate_drafts(target, drawn(chain(k), draft))
    expected = np.exp(evaluate(block.log_thresholds, drafts))
    ends = [np.where(np.arange(k) == last, 0.0, 1.0) for last in range(-1, k)]
    for accepted, uniforms in enumerate(ends):
        found = evaluate(descend, drafts, np.tile(uniforms, (len(drafts.tokens), 1)), as_tree=True)
        np.testing.assert_allclose(found.thresholds[found.tested], expected[found.tested], atol=1e-12)
        # A threshold of 0 is never passed.
        possible = found.accepted == accepted
        np.testing.assert_array_equal(possible, (expected > 0)[:, accepted - 1] | (accepted == 0))
        assert found.tested[possible][:, max(accepted - 1, 0) :].all()
        residual = evaluate(after(accepted), drafts)
        mine, block_s = probabilities(found.next_log_probs), probabilities(residual)
        np.testing.assert_allclose(mine[possible], block_s[possible], atol=1e-12)


def after(accepted):
    return lambda proposal, target: block.next_log_probs(
        proposal, target, jnp.full(proposal.tokens.shape[0], accepted, jnp.int32)
    )


@pytest.mark.slow
def test_on_a_chain_the_tokens_are_those_of_block_verification():
    """With the real keys, in float32, drafts withheld and excluded."""
    rows, k, vocab = 1000, 4, 12
    rng = np.random.default_rng(1)
    draft = rng.dirichlet(np.full(vocab, 0.5), size=(rows, k))
    target = np.concatenate([draft, draft[:, :1]], axis=1) ** 0.7 * rng.gamma(2.0, size=(rows, k + 1, vocab))
    target[rng.random(target.shape) < 0.1] = 0
    tokens = (draft.cumsum(-1) < rng.random((rows, k, 1))).sum(-1).clip(max=vocab - 1)
    with np.errstate(divide="ignore"):
        draft, target = np.log(draft), np.log(target / target.sum(-1, keepdims=True))
    valid = np.arange(k)[None] < rng.integers(0, k + 1, size=(rows, 1))
    proposal = Proposal(jnp.asarray(tokens, jnp.int32), jnp.asarray(valid), jnp.asarray(draft, jnp.float32))
    log_probs = jnp.asarray(target, jnp.float32)
    mine, block_s = (
        jax.jit(verifier.verify)(
            verifier.rng(jax.random.split(jax.random.key(3), rows), jnp.full(rows, 5, jnp.int32)), proposal, log_probs
        )
        for verifier in (jaxspec.verifiers.TraversalVerifier(), jaxspec.BlockVerifier())
    )
    np.testing.assert_array_equal(mine.accepted, block_s.accepted)
    np.testing.assert_array_equal(mine.next_token, block_s.next_token)
    assert set(np.asarray(mine.accepted).tolist()) == set(range(k + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_traversal_is_recursive_rejection_lifted(name):
    """One verifier under two names; without replacement, as in the paper."""
    target, draft = pair(name, 3, 3, seed=9)
    drafter = drawn_without_replacement((-1, -1, 0, 0), draft)
    lifted = LiftedVerifier(LocalRejection()).rule
    rules = (walk_rule(lambda *args: walk_up(lifted, *args)), walk_rule(descend))
    mine, traversal = (enumerate_round(target, drafter, rule) for rule in rules)
    assert mean_accepted(mine) == mean_accepted(traversal)
    assert deviation(mine, target, 3) < EXACT


@pytest.mark.parametrize("rule", [5, LocalRejection])
def test_what_is_no_rule(rule):
    with pytest.raises(TypeError, match=r"rule must be a LocalRule, got .*; pass LocalRejection\(\)"):
        LiftedVerifier(rule).check(jaxspec.drafters.NoDrafter())
