"""Losses and choices of `Adaptive`, by tables of costs: exact arithmetic, without a clock."""

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


def rounds(costs, right, **options):
    """Of each round and row: its limit, its time and its tokens."""
    limits = np.asarray(run(Adaptive(costs, LENGTHS, **options), right))
    return limits, time_of(costs, limits), 1 + np.minimum(limits, np.asarray(right))


def time_of(costs, limits):
    return np.asarray(costs)[np.searchsorted(LENGTHS, limits)]


def until(tokens, time, emitted):
    """Returns time and number of tokens of the first rounds that emit at least `tokens`, for each row."""
    last = np.argmax(np.cumsum(emitted, axis=0) >= tokens, axis=0)
    rows = np.arange(time.shape[1])
    return np.cumsum(time, axis=0)[last, rows], np.cumsum(emitted, axis=0)[last, rows]


def best_fixed(costs, right):
    """The time of a token at the best fixed length."""
    return min(c / (1 + np.minimum(n, right)).mean() for n, c in zip(LENGTHS, costs, strict=True))


@pytest.mark.parametrize("costs", list(TABLES.values())[:5], ids=list(TABLES)[:5])
def test_a_useless_draft_costs_less_than_two_hundredths(costs):
    """Over 128 tokens; over 1,000 it is a hundredth and what trials cost."""
    limits, time, emitted = (x[:, 0] for x in rounds(costs, USELESS))
    assert np.cumsum(time)[127] <= 1.02 * 128 and np.cumsum(emitted)[127] == 128
    assert time.sum() <= 1.011 * ROUNDS + (costs[1] - 1) * ROUNDS / 128
    assert limits.any()


def test_what_can_never_pay_is_not_drafted_but_for_trials():
    limits, *_ = rounds(TABLES["dearer than it can ever pay for"], USELESS)
    assert {*np.flatnonzero(limits[:, 0])} == {*range(128, ROUNDS, 128)}


@pytest.mark.parametrize("acceptance", [0.4, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("costs", list(TABLES.values())[:4], ids=list(TABLES)[:4])
def test_a_good_draft_is_nearly_as_fast_as_at_the_best_fixed_length(costs, acceptance):
    """Mean time of a token over 40 answers of 512 tokens."""
    right = right_drafts(2, acceptance, ROUNDS, ROWS)
    _, time, emitted = rounds(costs, right)
    used, tokens = until(512, time, emitted)
    assert (used / tokens).mean() < 1.1 * best_fixed(costs, right)


@pytest.mark.parametrize("costs", [TABLES["copies"], TABLES["head"]], ids=["copies", "head"])
def test_a_draft_that_becomes_good_after_200_rounds_is_found(costs):
    probability = np.where(np.arange(ROUNDS) < 200, 0.0, 0.9)[:, None]
    limits, time, emitted = rounds(costs, right_drafts(3, probability, ROUNDS, ROWS))
    assert time[100:200].mean() < 1.01 and (limits[100:200] > 0).mean() < 0.02
    late = time[400:].sum() / emitted[400:].sum()
    assert late < 1.08 * best_fixed(costs, right_drafts(4, 0.9, 4000, 8))


@pytest.mark.parametrize("costs", [TABLES["copies"], TABLES["head"]], ids=["copies", "head"])
def test_a_draft_that_turns_bad_is_left(costs):
    """As soon as an average over some twenty rounds can tell."""
    probability = np.where(np.arange(ROUNDS) < 200, 0.9, 0.0)[:, None]
    limits, time, emitted = rounds(costs, right_drafts(5, probability, ROUNDS, ROWS))
    after = time[200:].sum(axis=0) - emitted[200:].sum(axis=0)
    assert after.max() <= 32
    assert (limits[-100:] > 0).mean() < 0.03


def test_drafts_whose_quality_comes_and_goes_lose_little_and_gain():
    rng = np.random.default_rng(0)
    moods = np.repeat(rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], size=(10, ROWS)), 100, axis=0)
    costs = TABLES["copies"]
    limits, time, emitted = rounds(costs, right_drafts(1, moods, ROUNDS, ROWS))
    speeds = emitted.sum(axis=0) / time.sum(axis=0)
    assert speeds.min() > 1 and {*np.unique(limits)} == {*LENGTHS}


def slowest(costs, right, count):
    """Returns the time until the slowest row of a batch has `count` tokens, divided by `count`."""
    limits = np.asarray(run_together(Adaptive(costs, LENGTHS), right))
    assert (limits == limits[:, :1]).all()
    tokens = np.cumsum(1 + np.minimum(limits, right), axis=0).min(axis=1)
    return np.cumsum(time_of(costs, limits[:, 0]))[np.argmax(tokens >= count)] / count


@pytest.mark.parametrize("good", [1, 6, 8])
def test_a_row_s_good_draft_does_not_make_the_slowest_wait(good):
    """Some of eight accept everything, the others nothing: the batch ends as soon as at the best length for these."""
    costs, right = TABLES["head"], jnp.zeros((ROUNDS, 8), jnp.int32).at[:, :good].set(8)
    assert slowest(costs, right, 500) < 1.03 * best_fixed(costs, right[:, -1:])


def test_rows_that_accept_less_decide():
    """Half of them keep 9 of 10 drafts, the others 7: the batch ends as soon as at the best length for these."""
    right = right_drafts(5, 0.9, ROUNDS, 8).at[:, 4:].set(right_drafts(6, 0.7, ROUNDS, 4))
    assert slowest(TABLES["head"], right, 1000) < 1.1 * best_fixed(TABLES["head"], right[:, 4:]) < 0.9


@pytest.mark.slow
def test_rows_that_take_turns_are_as_fast_as_all_together():
    """Each finds something to copy in every fourth round: no row lags, so a draft pays for what all emit."""
    length, live = Adaptive((1.0, 1.1), (0, 2)), jnp.ones(4, jnp.bool_)
    state, time, tokens = length.init(4), 0.0, np.zeros(4, int)
    for index in range(80):
        able = jnp.arange(4) == index % 4
        submitted = jnp.where(able, length.longest(state, able, live), 0)
        accepted = jnp.where(able, submitted, 0)
        state = length.observe(state, submitted, accepted, able, live)
        time, tokens = time + (1.1 if submitted.any() else 1.0), tokens + 1 + np.asarray(accepted)
    assert time / tokens.min() < 0.8


def test_rows_that_cannot_draft_count_one_token_each():
    """What pays for a row alone does not pay for eight of which seven wait."""
    length, everyone = Adaptive((1.0, 1.4), (0, 2)), jnp.ones(8, jnp.bool_)
    state, one = length.init(8), jnp.arange(8) == 0
    assert length.longest(state, everyone, everyone).tolist() == [2] * 8
    assert length.longest(state, one, one)[0] == 2 and length.longest(state, one, everyone)[0] == 0
