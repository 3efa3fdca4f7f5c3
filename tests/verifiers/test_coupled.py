"""`CoupledVerifier` emits the plain sampler's own tokens, and that sampler has the right distribution."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxspec.core import random as keys
from jaxspec.core.random import PositionNoise
from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.verifier import VerifierContract
from jaxspec.testing.enumeration.tables import PAIR_NAMES, pair
from jaxspec.testing.statistics import FALSE_ALARM
from jaxspec.verifiers.coupled import CoupledVerifier, coupled_tokens
from tests._fixtures.pairs import PAIRS

DRAWS = 100_000


class TestContract(VerifierContract):
    verifier = CoupledVerifier()


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_every_pattern_of_drafts_emits_the_coupled_tokens(k):
    vocab = 3
    patterns = list(itertools.product(range(vocab), repeat=k))
    cases = list(itertools.product(patterns, range(k + 1)))
    drafts = jnp.asarray([drafts for drafts, _ in cases], jnp.int32).reshape(len(cases), k)
    valid = jnp.asarray([[i < count for i in range(k)] for _, count in cases], jnp.bool_).reshape(len(cases), k)
    random = np.random.default_rng(k)
    for _ in range(8):
        noise = jnp.asarray(random.gumbel(size=(1, k + 1, vocab)).repeat(len(cases), 0), jnp.float32)
        probs = jnp.log(
            jnp.asarray(random.dirichlet(np.ones(vocab), size=(1, k + 1)).repeat(len(cases), 0), jnp.float32)
        )
        rng = PositionNoise(jax.random.split(jax.random.key(0), len(cases)), jnp.ones(len(cases), jnp.int32), noise)
        verdict = CoupledVerifier().verify(rng, Proposal(drafts, valid), probs)
        plain = np.asarray(coupled_tokens(probs, noise))[0].tolist()
        for (draft, count), accepted, token in zip(
            cases, *map(np.asarray, (verdict.accepted, verdict.next_token)), strict=True
        ):
            emitted = (*draft[:accepted], int(token))
            assert emitted == tuple(plain[: accepted + 1])
            # It stops at the first draft that differs, and nowhere before.
            assert accepted == count or draft[accepted] != plain[accepted]


def test_noise_is_gumbel_to_the_last_bit_that_matters(monkeypatch):
    bits = np.concatenate([np.arange(64), 2**32 - 1 - np.arange(2**9), np.linspace(0, 2**32 - 1, 1000)])
    bits = bits.astype(np.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(bits))
    found = np.asarray(keys._gumbel(jax.random.key(0), len(bits)), np.float64)
    uniform = np.asarray(keys._uniform(jax.random.key(0), len(bits)), np.float64)
    np.testing.assert_allclose(uniform, (bits.astype(np.float64) + 0.5) * 2.0**-32, rtol=2.0**-24)
    # The complement of a uniform is a uniform: the distribution is stats.gumbel_r's.
    np.testing.assert_allclose(found, stats.gumbel_r.isf(uniform), rtol=2e-6, atol=2e-6)


def noise(seed, vocab):
    rng = PositionNoise(jax.random.split(jax.random.key(seed), DRAWS), jnp.full(DRAWS, 5, jnp.int32))
    return rng.token_noise(1, vocab)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pair for pair in PAIRS if pair.values != ("equal",)])
def test_how_often_draft_and_target_agree(name):
    """Daliri et al.: agreement is the sum over x of 1 / sum over y of the larger ratio to x."""
    target, draft = (table.probs(()) for table in pair(name, 4, 1, seed=7))
    expected = agreement(target, draft)
    shared = noise(PAIR_NAMES.index(name), 4)
    with np.errstate(divide="ignore"):
        rows = lambda probs: jnp.broadcast_to(jnp.asarray(np.log(probs), jnp.float32), shared.shape)
        same = int(jnp.sum(coupled_tokens(rows(target), shared) == coupled_tokens(rows(draft), shared)))
    # Two-sided binomial test; FALSE_ALARM over all pairs.
    assert stats.binomtest(same, DRAWS, min(max(expected, 0), 1)).pvalue > FALSE_ALARM / len(PAIR_NAMES)
    distance = 0.5 * np.abs(target - draft).sum()
    assert (1 - distance) / (1 + distance) - 1e-12 <= expected <= 1 - distance + 1e-12


def agreement(target, draft) -> float:
    total = 0.0
    for x in range(len(target)):
        if target[x] > 0 and draft[x] > 0:
            total += 1 / np.sum(np.maximum(target / target[x], draft / draft[x]))
    return float(total)


@pytest.mark.slow
def test_equal_distributions_always_agree():
    shared = noise(1, 4)
    probs = jnp.broadcast_to(jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4])), shared.shape)
    assert (coupled_tokens(probs, shared) == coupled_tokens(probs, shared)).all()


@pytest.mark.slow
def test_positions_and_rows_have_their_own_noise():
    row_keys = jax.random.split(jax.random.key(0), 3)
    lengths = jnp.array([4, 4, 6], jnp.int32)
    found = np.asarray(PositionNoise(row_keys, lengths).token_noise(4, 5))
    assert len(np.unique(found)) == found.size


def test_a_position_has_the_same_noise_in_every_round():
    row_keys = jax.random.split(jax.random.key(0), 1)
    at = lambda length, count: np.asarray(PositionNoise(row_keys, jnp.array([length], jnp.int32)).token_noise(count, 5))
    np.testing.assert_array_equal(at(4, 4)[:, 2:], at(6, 2))
    rng = PositionNoise(row_keys, jnp.array([4], jnp.int32))
    np.testing.assert_array_equal(rng.draft_noise(jnp.int32(2), 5), at(6, 1)[:, 0])
    np.testing.assert_array_equal(rng.shared(4, 5).draft_noise(jnp.int32(2), 5), at(6, 1)[:, 0])
    # A draft that knows some tokens alone is drawn with what the target has for those.
    ids = jnp.array([1, 3, 4])
    for some in (rng, rng.shared(4, 5)):
        np.testing.assert_array_equal(some.draft_noise(jnp.int32(2), 5, ids), at(6, 1)[:, 0, ids])
