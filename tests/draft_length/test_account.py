"""What `Adaptive` may lose: exact arithmetic on tables of costs, without any clock."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.draft_length.adaptive import Adaptive
from tests._fixtures.draft_lengths import right_drafts, run, run_together

LENGTHS = (0, 2, 4, 8)
# One shape for all: one program.
ROUNDS, ROWS = 1000, 40
USELESS = jnp.zeros((ROUNDS, ROWS), jnp.int32)
# A copying drafter and an EAGLE head, by products that read weights once and by those that do not; an early exit.
TABLES = {
    "copies": (1.0, 1.1, 1.13, 1.41),
    "copies, dear": (1.0, 1.43, 1.64, 1.8),
    "head": (1.0, 1.7, 2.2, 3.5),
    "head, dear": (1.0, 2.0, 2.7, 3.9),
    "free": (1.0, 1.01, 1.01, 1.02),
    "dearer than it can ever pay for": (1.0, 20.0, 40.0, 80.0),
}


def account(costs, right, **options):
    """Of each round and row: its limit, its time and its tokens."""
    limits = np.asarray(run(Adaptive(costs, LENGTHS, **options), right))
    time = np.asarray(costs)[np.searchsorted(LENGTHS, limits)]
    if lag := options.get("lag"):
        missed = np.zeros(limits.shape[1])
        for at, row in enumerate(limits):
            time[at] += lag * missed * (row > 0)
            missed = np.where(row > 0, 0, missed + 1)  # a plain round emits one token
    return limits, time, 1 + np.minimum(limits, np.asarray(right))


def until(tokens, time, emitted):
    """Time and number of the tokens of the first rounds that emit at least so many, row by row."""
    rounds = np.argmax(np.cumsum(emitted, axis=0) >= tokens, axis=0)
    rows = np.arange(time.shape[1])
    return np.cumsum(time, axis=0)[rounds, rows], np.cumsum(emitted, axis=0)[rounds, rows]


@pytest.mark.parametrize("costs", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("lag", [0.0, 0.005, 0.04])
def test_a_useless_draft_costs_less_than_three_hundredths(costs, lag):
    """Over 128 tokens, and over every number of them the bound that the documentation states."""
    limits, time, emitted = (x[:, 0] for x in account(costs, USELESS, lag=lag))
    tokens = np.cumsum(emitted)
    assert np.cumsum(time)[127] <= 1.018 * 128 and tokens[127] == 128
    assert (np.cumsum(time) <= 1.008 * tokens + 1.25 + 1e-3).all()
    assert limits.any() == (costs[1] < 20)


def test_nothing_costs_more_than_the_bound():
    """Drafts whose quality comes and goes without notice."""
    rng = np.random.default_rng(0)
    costs = TABLES["head"]
    moods = np.repeat(rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], size=(40, ROWS)), 25, axis=0)
    limits, time, emitted = account(costs, right_drafts(1, moods, ROUNDS, ROWS))
    balance = 1.008 * np.cumsum(emitted, axis=0) - np.cumsum(time, axis=0)
    assert (balance >= -1.25 - 1e-3).all()
    # Over any stretch: the most that the balance has ever fallen from a peak.
    fallen = (np.maximum.accumulate(balance, axis=0) - balance).max(axis=0)
    assert (fallen <= 12 + 1e-3).all() and fallen.max() > 4
    assert {*np.unique(limits)} == {*LENGTHS}


@jax.jit
def _against_an_adversary(length):
    """Accepts everything until the length drafts the most with all it may lose in hand, then nothing for a while."""

    def one(carry, _):
        state, bad = carry
        limit = length.longest(state, jnp.ones(1, jnp.bool_))
        bad = jnp.where((limit == LENGTHS[-1]) & (state.balance > 11), 40, jnp.maximum(bad - 1, 0))
        right = jnp.where(bad > 0, 0, limit)
        state = length.observe(state, limit, right, jnp.ones(right.shape, jnp.bool_))
        return (state, bad), (limit, right, state.balance)

    return jax.lax.scan(one, (length.init(1), jnp.zeros(1, jnp.int32)), None, length=ROUNDS)[1]


def test_an_adversary_gains_no_more():
    costs = TABLES["head"]
    limits, right, balance = (np.asarray(x)[:, 0] for x in _against_an_adversary(Adaptive(costs, LENGTHS)))
    time, emitted = np.asarray(costs)[np.searchsorted(LENGTHS, limits)], 1 + right
    assert (np.cumsum(time) <= 1.008 * np.cumsum(emitted) + 1.25 + 1e-2).all()
    assert balance.min() >= -1e-5 and balance.max() <= 12 and (limits == 8).any()


@pytest.mark.parametrize("acceptance", [0.4, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("costs", list(TABLES.values())[:4], ids=list(TABLES)[:4])
def test_a_good_draft_is_nearly_as_fast_as_at_the_best_fixed_length(costs, acceptance):
    """Mean time of a token over 40 answers of 512 tokens."""
    right = right_drafts(2, acceptance, ROUNDS, ROWS)
    _, time, emitted = account(costs, right)
    used, tokens = until(512, time, emitted)
    best = min(c / (1 + np.minimum(n, right)).mean() for n, c in zip(LENGTHS, costs, strict=True))
    assert (used / tokens).mean() < 1.08 * best


@pytest.mark.parametrize("costs", [TABLES["copies"], TABLES["head"]], ids=["copies", "head"])
@pytest.mark.parametrize("advance", [Adaptive.advance, 1.5])
def test_a_draft_that_becomes_good_after_200_rounds_is_found(costs, advance):
    probability = np.where(np.arange(ROUNDS) < 200, 0.0, 0.9)[:, None]
    limits, time, emitted = account(costs, right_drafts(3, probability, ROUNDS, ROWS), advance=advance)
    # With less in advance it is still learning, by tries that cost little, that a cheap draft is useless.
    assert time[100:200].mean() < 1.015
    assert (limits[100:200] > 0).mean() < (0.1 if advance < 1.5 and costs[1] < 1.2 else 0.05)
    late = time[400:].sum() / emitted[400:].sum()
    right = right_drafts(4, 0.9, 4000, 8)
    best = min(c / (1 + np.minimum(n, right)).mean() for n, c in zip(LENGTHS, costs, strict=True))
    assert late < 1.12 * best


@pytest.mark.parametrize("costs", [TABLES["copies"], TABLES["head"]], ids=["copies", "head"])
def test_a_draft_that_turns_bad_is_left(costs):
    probability = np.where(np.arange(ROUNDS) < 200, 0.9, 0.0)[:, None]
    limits, time, emitted = account(costs, right_drafts(5, probability, ROUNDS, ROWS))
    after = time[200:].sum(axis=0) - 1.008 * emitted[200:].sum(axis=0)
    assert after.max() <= 12 + 1e-3
    assert (limits[-100:] > 0).mean() < 0.03


def test_text_that_was_missed_is_paid_for():
    """A drafter that would have to read more than it may cost is not tried again."""
    limits = np.asarray(run(Adaptive(TABLES["copies"], LENGTHS, lag=0.04), USELESS))
    assert limits[:10].any() and not limits[200:].any()
    cheap = np.asarray(run(Adaptive(TABLES["copies"], LENGTHS), USELESS))
    assert cheap[200:].any()


def test_rows_together_pay_for_all_text_that_is_read():
    """One row's drafts are all right and cheap, the other's never: both read what they missed."""
    costs, lag = (1.0, 1.06), 0.1
    right = jnp.asarray([[2, 0]] * ROUNDS, jnp.int32)
    limits = np.asarray(run_together(Adaptive(costs, (0, 2), lag=lag, prior=0.05), right))
    ran, emitted = limits.any(axis=1), 1 + np.minimum(limits, right)
    missed, time = np.zeros(2), []
    for at in range(ROUNDS):
        time.append(1.0 + ran[at] * (0.06 + lag * missed.max()))
        missed = np.where(ran[at], 0, missed) + np.where(limits[at] > 0, 0, emitted[at])
    assert (np.cumsum(time)[:, None] <= 1.008 * np.cumsum(emitted, axis=0) + 1.25 + 1e-3).all()
    assert (limits[:, 0] > limits[:, 1]).sum() > 5
