"""`SyntheticVerifier`: the accepted counts are exactly those of its rates, for any models."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.synthetic import SyntheticVerifier
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.core.tree import Tree
from jaxspec.testing.history_models import history_model, nearby
from jaxspec.testing.statistics import same_distribution
from tests._fixtures import tiny

VOCAB, DRAFTS, STEPS = 5, 3, 20
ROWS = STEPS**DRAFTS
RATES, TWO = (0.8, 0.5, 0.3), (0.8, 0.5)
TREE = Tree((-1, -1, 0, 0, 2, 1))
TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFT = nearby(TARGET, 0.4)
_verify = jax.jit(lambda verifier, *args: verifier.verify(*args))
_verify_greedy = jax.jit(lambda verifier, *args: verifier.verify_greedy(*args))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Grid(RoundKeys):
    """Every combination of `STEPS` evenly spaced uniforms, a row each: counts of rows are probabilities."""

    def uniforms(self, count):
        axis = (np.arange(STEPS) + 0.5) / STEPS
        return jnp.asarray(list(itertools.product(axis, repeat=DRAFTS)), jnp.float32)[:, :count]


def rng(kind):
    return kind(jax.random.split(jax.random.key(0), ROWS), jnp.full(ROWS, 3, jnp.int32))


def case(shape=None):
    """Makes drafts and the target's log-probabilities, a row each; `shape` is a tree."""
    random = np.random.default_rng(0)
    count = DRAFTS if shape is None else shape.size
    tokens = jnp.asarray(random.integers(VOCAB, size=(ROWS, count)), jnp.int32)
    target = jnp.asarray(np.log(random.dirichlet(np.ones(VOCAB), size=(ROWS, count + 1))), jnp.float32)
    valid = jnp.ones((ROWS, count), jnp.bool_)
    if shape is None:
        return Proposal(tokens, valid), target
    parents = jnp.broadcast_to(jnp.asarray(shape.parents, jnp.int32)[None], (ROWS, count))
    return Proposal(tokens, valid, None, parents, shape.depth), target


def verify(rates, proposal, target, kind=RoundKeys):
    return _verify(SyntheticVerifier(rates), rng(kind), proposal, target)


def verify_greedy(rates, proposal, target):
    tokens = jnp.argmax(target, axis=-1).astype(jnp.int32)
    return _verify_greedy(SyntheticVerifier(rates), rng(Grid), proposal, tokens), tokens


def expected(rates, submitted):
    """Returns the probability of each accepted count, from 0 to as many as were submitted."""
    survives = np.cumprod([1.0, *rates[:submitted]])
    return survives - np.append(survives[1:], 0.0)


def test_the_accepted_counts_are_exactly_those_of_the_rates():
    """Of rows with every combination of uniforms: drawn, greedy, and down a tree."""
    verdicts = (verify(RATES, *case(), Grid), verify_greedy(RATES, *case())[0], verify(RATES, *case(TREE), Grid))
    for verdict in verdicts:
        np.testing.assert_array_equal(np.bincount(verdict.accepted), np.round(expected(RATES, DRAFTS) * ROWS))


def test_the_real_uniforms_and_what_is_submitted():
    """Rates beyond the last are the last; drafts that are not submitted are never accepted."""
    submitted = np.arange(ROWS) % 4
    proposal, target = case()
    proposal = dataclasses.replace(proposal, valid=jnp.asarray(np.arange(DRAFTS)[None] < submitted[:, None]))
    accepted = np.asarray(verify(TWO, proposal, target).accepted)
    assert not accepted[submitted == 0].any()
    for count in (1, 2, 3):
        found = np.bincount(accepted[submitted == count], minlength=count + 1)
        same_distribution(expected((0.8, 0.5, 0.5), count), found, tests=3)


def test_a_rate_of_1_accepts_all_and_a_rate_of_0_none():
    assert set(verify((1.0, 0.0), *case()).accepted.tolist()) == {1}
    assert set(verify((0.0, 1.0), *case()).accepted.tolist()) == {0}


def test_the_token_after_them_is_the_targets():
    proposal, target = case()
    verdict = verify(TWO, proposal, jnp.broadcast_to(target[:1], target.shape))
    for count in range(DRAFTS + 1):
        tokens = np.asarray(verdict.next_token)[np.asarray(verdict.accepted) == count]
        same_distribution(np.exp(target[0, count]), np.bincount(tokens, minlength=VOCAB), tests=4)


def test_a_tree_goes_down_its_first_children():
    """Of those that are submitted; nodes 0 and 1 follow the text, 2 and 3 follow 0, 4 follows 2."""
    proposal, target = case(TREE)
    tokens = jnp.broadcast_to(jnp.asarray([0, 1, 2, 3, 4, 0], jnp.int32)[None], proposal.tokens.shape)
    valid = proposal.valid.at[1].set(jnp.asarray([True, True, False, True, False, True]))
    verdict = verify((1.0, 1.0, 1.0), dataclasses.replace(proposal, tokens=tokens, valid=valid), target, Grid)
    assert verdict.accepted[:3].tolist() == [3, 2, 3]
    assert verdict.path[0].tolist() == [0, 2, 4] and verdict.path[1, :2].tolist() == [0, 3]


def test_the_deviation_is_the_total_variation_given_the_draft():
    """Between emitting the draft at its rate, else a draw, and the target's distribution; greedy is one-hot."""
    proposal, target = case()
    verdict = verify(TWO, proposal, target)
    probs, rates = np.exp(np.asarray(target, np.float64))[:, :DRAFTS], np.array([0.8, 0.5, 0.5])[:, None]
    emitted = rates * np.eye(VOCAB)[np.asarray(proposal.tokens)] + (1 - rates) * probs
    variation = np.abs(emitted - probs).sum(-1) / 2
    reached = np.arange(DRAFTS) <= np.asarray(verdict.accepted)[:, None]
    np.testing.assert_allclose(verdict.deviation, np.where(reached, variation, 0), atol=1e-6)
    greedy, tokens = verify_greedy((1.0, 1.0, 1.0), proposal, target)
    np.testing.assert_array_equal(greedy.deviation, (proposal.tokens != tokens[:, :-1]).astype(np.float32))
    np.testing.assert_array_equal(greedy.next_token, tokens[:, -1])


def generate(drafter, rates, **options):
    verifier = SyntheticVerifier(rates)
    options = {"key": jax.random.key(1), "verifier": verifier, "max_new_tokens": 13, "lossy": True} | options
    return jaxspec.generate(TARGET, drafter, jnp.asarray([[1, 2, 3], [4, 5, 6]], jnp.int32), **options)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [jaxspec.Greedy(), jaxspec.Sampling()])
def test_a_generation_accepts_at_the_rates(policy):
    """13 tokens at 3 a round, the last of which is cut: two drafts are always accepted and the third never."""
    found = generate(jaxspec.ModelDrafter(DRAFT, k=3), (1.0, 1.0, 0.0), sampling=policy)
    assert found.stats.rounds.tolist() == [5, 5]
    assert found.stats.histogram[:, 3].tolist() == [0, 0]
    assert not found.lossless and found.measured_total_variation > 0


@pytest.mark.slow
def test_a_generation_of_a_tree_and_of_no_drafts():
    tree = generate(jaxspec.TreeDrafter(DRAFT, Tree.balanced((2, 2))), (1.0,), sampling=jaxspec.Sampling())
    assert tree.stats.rounds.tolist() == [5, 5]
    none = generate(jaxspec.ModelDrafter(DRAFT, k=3), (0.0,))
    plain = jaxspec.generate(TARGET, None, jnp.asarray([[1, 2, 3], [4, 5, 6]], jnp.int32), max_new_tokens=13)
    np.testing.assert_array_equal(none.tokens, plain.tokens)
    assert none.stats.rounds.tolist() == [13, 13]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SyntheticVerifier(()), ValueError, "at least one rate, got none; pass one rate per position"),
        (lambda: SyntheticVerifier("0.5"), TypeError, "a sequence of rates, got '0.5'; pass one rate"),
        (lambda: SyntheticVerifier((0.5, 1.5)), ValueError, "needs rates between 0 and 1, got 1.5"),
        (lambda: SyntheticVerifier((np.nan,)), ValueError, "between 0 and 1, got nan"),
        (lambda: SyntheticVerifier((0.5, "x")), TypeError, "needs one number as rates, got 'x'"),
        (lambda: generate(jaxspec.NGramDrafter(k=2), (0.5,), lossy=False), ValueError, "lossy=True"),
    ],
)
def test_bad_input(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.slow
def test_drafts_that_the_policy_leaves_out_are_no_error():
    """They are accepted as any other, and reported with probability 0."""
    drafter = jaxspec.ModelDrafter(DRAFT, k=DRAFTS, sampling=jaxspec.Sampling(2.0))
    result = jaxspec.generate(
        TARGET,
        drafter,
        jnp.zeros((16, 1), jnp.int32),
        key=jax.random.key(0),
        sampling=jaxspec.Sampling(top_k=2),
        verifier=SyntheticVerifier((1.0,)),
        max_new_tokens=8,
        lossy=True,
    )
    assert result.status.tolist() == [0] * 16 and result.length.tolist() == [8] * 16
    assert jnp.isneginf(result.warped_log_probs).any() and not jnp.isnan(result.warped_log_probs).any()
