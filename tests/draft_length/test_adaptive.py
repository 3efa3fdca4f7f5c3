"""`Adaptive`: the lengths it picks, how soon, and the passes that a round then runs."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.costs import measure_costs
from jaxspec.core.prefill import CATCH_UP_CHUNK
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.base import NoDrafter
from jaxspec.testing.history_models import HistoryModel, history_model, nearby
from tests._fixtures import tiny
from tests._fixtures.compiled import computations_in_loops
from tests._fixtures.draft_lengths import PlainAdaptive, right_drafts, run, run_together

LENGTHS, COSTS, PERIOD = (0, 2, 4, 8), (1.0, 1.40137, 1.70271, 2.40173), 128
ADAPTIVE = Adaptive(COSTS, LENGTHS)
TARGET = history_model(0, scale=2.0)
PROMPT = jnp.array([[3, 1, 2], [1, 0, 3]], jnp.int32)


def test_drafts_that_are_certain_are_drafted_as_far_as_they_pay():
    """They are, regardless of the acceptance so far, which they do not change; later drafts count as before."""
    state, rows = ADAPTIVE.init(2), jnp.ones(2, jnp.bool_)
    state = dataclasses.replace(state, acceptance=jnp.full((2, 8), 0.02))
    longest = lambda *certain: ADAPTIVE.longest_certain(state, rows, rows, jnp.asarray(certain, jnp.int32)).tolist()
    assert ADAPTIVE.longest(state, rows, rows).tolist() == longest(0, 0) == [0, 0]
    assert longest(8, 8) == [8, 8] and longest(4, 4) == [4, 4] and longest(2, 2) == [2, 2]
    # The other row waits: for five rounds' time the 9 tokens of one do not pay.
    assert longest(8, 0) == [8, 8]
    dear = Adaptive((1.0, 2.1, 3.1, 5.2), LENGTHS)
    assert dear.longest_certain(state, rows, rows, jnp.asarray([8, 0], jnp.int32)).tolist() == [0, 0]


OPTIONS = (pytest.param({}, marks=pytest.mark.slow), {"rate": 0.4, "period": 5, "prior": 0.4}, {"period": 9})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_picks_what_the_formula_picks(options):
    """Acceptance that comes and goes, so that every length and many trials occur."""
    probability = 0.5 + 0.5 * np.sin(np.arange(900) / 90)[:, None]
    right = right_drafts(0, probability, 900, 4)
    found = np.asarray(run(Adaptive(COSTS, LENGTHS, **options), right))
    for row in range(4):
        plain, expected = PlainAdaptive(COSTS, LENGTHS, **options), []
        for accepted in right[:, row].tolist():
            (limit,) = plain.limits()
            expected.append(limit)
            plain.observe([limit], [min(accepted, limit)])
        np.testing.assert_array_equal(found[:, row], expected)
    assert {*found.ravel().tolist()} == {*LENGTHS}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_pick_together_what_the_formula_picks(options):
    """Rows whose acceptance comes and goes apart, and which end one after the other."""
    phase = np.arange(900)[:, None] / 90 + np.array([[0.0, 0.8, 1.6, 2.4, 0.4]])
    right = right_drafts(4, 0.5 + 0.5 * np.sin(phase), 900, 5)
    live = np.arange(900)[:, None] < np.array([[900, 500, 900, 700, 850]])
    found = np.asarray(run_together(Adaptive(COSTS, LENGTHS, **options), right, jnp.asarray(live)))
    plain = PlainAdaptive(COSTS, LENGTHS, rows=5, **options)
    for at, (accepted, here) in enumerate(zip(right.tolist(), live.tolist(), strict=True)):
        limits = plain.limits(here)
        np.testing.assert_array_equal(found[at], limits, err_msg=f"round {at}")
        plain.observe(limits, [min(pair) for pair in zip(accepted, limits, strict=True)], here)
    assert {*found.ravel().tolist()} == {*LENGTHS}


def test_it_drafts_nothing_where_drafting_does_not_pay():
    """After the first rounds a hopeless draft is tried once in `period` rounds, never twice, by all rows together."""
    limits = np.asarray(run(ADAPTIVE, jnp.zeros((2000, 3), jnp.int32)))
    assert (limits == limits[:, :1]).all()
    tries = np.flatnonzero(limits[:, 0])
    late = tries[tries > 50]
    assert (limits[late, 0] == LENGTHS[1]).all() and (late % PERIOD == 0).all()
    assert (np.diff(late) == PERIOD).all() and len(late) > 10


def test_it_drafts_the_most_where_all_is_accepted():
    limits = np.asarray(run(ADAPTIVE, jnp.full((2000, 1), 8, jnp.int32)))[:, 0]
    assert (limits[10:] == 8).all()


def test_it_comes_back_when_the_draft_becomes_good():
    """After 500 hopeless rounds: within a few trials at 9 of 10 right, in all of 50 rows."""
    probability = np.where(np.arange(1500) < 500, 0.0, 0.9)[:, None]
    limits = np.asarray(run(ADAPTIVE, right_drafts(1, probability, 1500, 50)))
    assert (limits[400:500] > 0).mean() < 0.03
    back = 500 + np.argmax(limits[500:] == 8, axis=0)  # not before the next trial, at round 512
    assert np.median(back) < 500 + 3 * PERIOD
    assert (limits[-300:] >= 4).mean() > 0.9


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
def test_it_is_nearly_as_fast_as_the_best_fixed_length(acceptance):
    """Time a token by the table, over 4,000 rounds and over the first 200 alone."""
    right = right_drafts(2, acceptance, 4000, 8)
    limits = np.asarray(run(ADAPTIVE, right))
    for first, slack in ((4000, 1.05), (200, 1.09)):
        used, emitted = limits[:first], 1 + np.minimum(limits, right)[:first]
        time = np.array(COSTS)[np.searchsorted(LENGTHS, used)].sum() / emitted.sum()
        best = min(c / (1 + np.minimum(n, right)).mean() for n, c in zip(LENGTHS, COSTS, strict=True))
        assert best <= 1
        assert time < slack * best


def test_a_trial_that_pays_is_repeated_and_weighs_like_a_first_round():
    """And one in vain is not, until its time has come again."""
    everyone = jnp.ones(1, jnp.bool_)
    state = dataclasses.replace(ADAPTIVE.init(1), due=everyone, seen=jnp.full((1, 8), 100, jnp.int32))
    state = dataclasses.replace(state, acceptance=jnp.full((1, 8), 0.1, jnp.float32))
    two = jnp.full(1, 2, jnp.int32)
    paid, vain = (ADAPTIVE.observe(state, two, kept, everyone, everyone) for kept in (two, 0 * two))
    assert ADAPTIVE.longest(state, everyone, everyone).tolist() == [2]
    assert paid.due.tolist() == [True] and vain.due.tolist() == [False]
    np.testing.assert_allclose(paid.acceptance[0], [0.325] * 8, rtol=1e-6)
    np.testing.assert_allclose(vain.acceptance[0, :2], [0.095, 0.1], rtol=1e-6)
    # A trial that could not be made stays due.
    assert ADAPTIVE.observe(state, 0 * two, 0 * two, everyone, everyone).due.tolist() == [True]


def test_rows_that_did_not_draft_learn_nothing():
    state, live = ADAPTIVE.init(2), jnp.array([True, True])
    after = ADAPTIVE.observe(state, *jnp.array([[8, 8], [0, 8]], jnp.int32), jnp.array([True, False]), live)
    changed = jax.tree.map(lambda new, old: (new != old).reshape(2, -1).any(1).tolist(), after, state)
    assert changed.acceptance == changed.rounds == [True, False]


PASSES = []


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Watched(HistoryModel):
    """Notes each executed pass and its width."""

    name: str = dataclasses.field(default="", metadata={"static": True})

    def __call__(self, tokens, cache, **options):
        jax.debug.callback(lambda: PASSES.append((self.name, tokens.shape[1])))
        return super().__call__(tokens, cache, **options)


def watch_rounds(draft, length, rounds):
    """Of each round: how many tokens each row drafted and accepted, and what passes were run."""
    target, draft = Watched(TARGET.a, TARGET.b, "target"), Watched(draft.a, draft.b, "draft")
    drafter = jaxspec.ModelDrafter(draft, k=length)
    state = jax.jit(lambda: jaxspec.init(target, drafter, PROMPT, max_new_tokens=400))()
    step = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))
    found = []
    for _ in range(rounds):
        jax.effects_barrier()
        PASSES.clear()
        limit = length.longest(state.drafter_state.length_state, ~state.done, ~state.done).tolist()
        state, info = step(state)
        jax.effects_barrier()
        found.append((limit, info.accepted.tolist(), PASSES.copy()))
    return found


def test_a_round_without_drafts_is_a_plain_round():
    """The draft model does not run at all, and then reads what it missed before the next trial."""
    length = Adaptive((1.0, 1.5), (0, 2), period=20)
    found = watch_rounds(HistoryModel(-TARGET.a, -TARGET.b), length, 42)
    plain = [passes for limit, _, passes in found if limit == [0, 0]]
    assert len(plain) > 25 and all(passes == [("target", 1)] for passes in plain)
    drafting = [passes for limit, _, passes in found if limit == [2, 2]]
    assert drafting[0] == [("draft", 2), ("draft", 1), ("target", 3)]
    # 19 rounds were plain. The last token that the cache held, and what the window feeds, is not read again.
    assert drafting[-1] == [("draft", CATCH_UP_CHUNK)] * 2 + drafting[0]


def test_rounds_are_those_of_the_formula_through_generate():
    """Limits recorded round by round, against the formula fed with what was accepted."""
    length = Adaptive((1.0, 1.30137, 1.90271), (0, 1, 3), period=6, rate=0.3)
    found = watch_rounds(nearby(TARGET, 0.8), length, 60)
    plain = PlainAdaptive((1.0, 1.30137, 1.90271), (0, 1, 3), rows=2, period=6, rate=0.3)
    for limit, accepted, _ in found:
        assert limit == plain.limits()
        plain.observe(limit, accepted)
    # The pass is as wide as its longest row needs, and the draft model runs no further. It has
    # missed nothing where it ran in the round before.
    for (before, _, _), (limit, _, passes) in itertools.pairwise(found):
        most = max(limit)
        drafted = [("draft", 2)] + [("draft", 1)] * (most - 1) if most else []
        missed = [passed for passed in passes if passed == ("draft", CATCH_UP_CHUNK)]
        assert passes == [*missed, *drafted, ("target", most + 1)]
        assert not missed or max(before) == 0
    assert len({max(limit) for limit, *_ in found}) == 3


@pytest.mark.slow
def test_new_costs_do_not_trace_again(monkeypatch):
    def generate(costs):
        drafter = jaxspec.ModelDrafter(nearby(TARGET, 0.8), k=Adaptive(costs, (0, 2)))
        return jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=30)

    def traced(*args, **options):
        raise AssertionError("a model was traced again")

    cheap = generate((1.0, 1.01))
    monkeypatch.setattr(HistoryModel, "__call__", traced)
    dear = generate((1.0, 50.0))
    np.testing.assert_array_equal(cheap.tokens, dear.tokens)
    assert dear.stats.rounds.sum() > cheap.stats.rounds.sum()
    assert dear.stats.drafted.sum() < cheap.stats.drafted.sum()


@pytest.mark.slow
@pytest.mark.optimized
def test_the_loop_copies_no_cache():
    target, draft = tiny.transformer(0), tiny.transformer(1, layers=2)
    drafter = jaxspec.ModelDrafter(draft, k=Adaptive((1.0, 1.3), (0, 2)))
    run = jax.jit(
        lambda key: jaxspec.generate(
            target, drafter, PROMPT, key=key, sampling=jaxspec.Sampling(), max_new_tokens=8, capacity=600
        )
    )
    loops = computations_in_loops(run.lower(jax.random.key(0)).compile().as_text())
    for model in (target, draft):
        cache = re.escape(f"f32[{','.join(map(str, model.init_cache(2, 603).keys.shape))}]")
        assert len(re.findall(cache, loops)) > 1
        assert not re.findall(rf"= {cache}\S* (?:copy|copy-start)\(.*", loops)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adaptive((1.0, 2.0)), "one float for each of the lengths"),
        (lambda: Adaptive((1.0, -2.0), (0, 2)), "costs must be positive"),
        (lambda: Adaptive((1.0, 2.0), (2, 0)), "lengths must rise"),
        (lambda: Adaptive((1.0,), ()), "a tuple of them"),
        (lambda: Adaptive((1.0, 2.0), (0, 2), rate=2), "rate between 0 and 1, got 2"),
        (lambda: Adaptive((1.0, 2.0), (0, 2), period=0), "period at least 1, got 0"),
        (lambda: Adaptive((1.0, 2.0), (0, 2), prior="3%"), "a number as prior"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_costs_given_as_an_array_are_checked_when_used():
    drafter = jaxspec.ModelDrafter(TARGET, k=Adaptive(jnp.ones(3), (0, 2)))
    with pytest.raises(ValueError, match="one float for each of the lengths"):
        jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=3)


@pytest.mark.slow
def test_costs_are_measured_in_one_program_for_all_lengths():
    costs = measure_costs(TARGET, jaxspec.ModelDrafter(nearby(TARGET, 0.3)), (0, 2), batch=2, text=12, repeats=1)
    assert len(costs) == 2 and min(costs) > 0
    assert Adaptive(costs, (0, 2)).lengths == (0, 2)
    with pytest.raises(TypeError, match="a drafter that takes a DraftLength, got NoDrafter"):
        measure_costs(TARGET, NoDrafter())
