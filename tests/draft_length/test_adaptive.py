"""`Adaptive`: what it picks, how soon, and what a round then runs."""

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
from tests._fixtures import tiny
from tests._fixtures.compiled import computations_in_loops
from tests._fixtures.draft_lengths import PlainAdaptive, right_drafts, run, run_together

# Costs whose sums never come to what may just be spent: rounding would decide then.
LENGTHS, COSTS, PERIOD = (0, 2, 4, 8), (1.0, 1.40137, 1.70271, 2.40173), 64
ADAPTIVE = Adaptive(COSTS, LENGTHS)
TARGET = tiny.history_model(0, scale=2.0)
PROMPT = jnp.array([[3, 1, 2], [1, 0, 3]], jnp.int32)


OPTIONS = (
    {},
    {"rate": 0.4, "period": 5, "margin": 0.2, "prior": 0.4},
    {"advance": 1.0, "reserve": 6.0, "allowance": 0.05, "lag": 0.0137, "period": 9},
)


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
    phase = np.arange(900)[:, None] / 90 + np.array([[0.0, 1.5, 3.0, 4.5, 0.5]])
    right = right_drafts(4, 0.5 + 0.5 * np.sin(phase), 900, 5)
    live = np.arange(900)[:, None] < np.array([[900, 500, 900, 700, 850]])
    found = np.asarray(run_together(Adaptive(COSTS, LENGTHS, **options), right, jnp.asarray(live)))
    plain = PlainAdaptive(COSTS, LENGTHS, rows=5, **options)
    for at, (accepted, here) in enumerate(zip(right.tolist(), live.tolist(), strict=True)):
        limits = plain.limits(here)
        np.testing.assert_array_equal(found[at], limits, err_msg=f"round {at}")
        plain.observe(limits, [min(pair) for pair in zip(accepted, limits, strict=True)], here)
    assert {*found.ravel().tolist()} == {*LENGTHS}
    assert len({tuple(sorted({*row.tolist()})) for row in found[:500]}) > 4  # rows differ in one round


def test_a_row_s_good_draft_does_not_make_all_wait():
    """Some of eight accept everything, the others nothing: those take hardly longer than in plain decoding."""
    for good in (1, 6):
        right = jnp.zeros((1000, 8), jnp.int32).at[:, :good].set(8)
        limits = np.asarray(run_together(ADAPTIVE, right))
        time = np.array(COSTS)[np.searchsorted(LENGTHS, limits.max(axis=1))]
        emitted = 1 + np.minimum(limits, right)
        assert (np.cumsum(time)[:, None] <= 1.008 * np.cumsum(emitted, axis=0) + 1.25 + 1e-3).all()
        assert 0 < (limits[100:] > 0).any(axis=1).mean() < 0.05
    # Alone they would draft the most, and all together do.
    assert (np.asarray(run(ADAPTIVE, right))[100:, 0] == 8).all()
    assert (np.asarray(run_together(ADAPTIVE, jnp.full((300, 8), 8, jnp.int32)))[100:] == 8).all()


def test_rows_draft_what_gives_all_of_them_the_most():
    """Half of them keep 9 of 10 drafts, the others 7: a round is nearly as short for its tokens as it can be."""
    right = right_drafts(5, 0.9, 1000, 8).at[:, 4:].set(right_drafts(6, 0.7, 1000, 4))
    limits = np.asarray(run_together(ADAPTIVE, right))
    time = np.array(COSTS)[np.searchsorted(LENGTHS, limits.max(axis=1))]
    tokens = (1 + np.minimum(limits, right)).mean(axis=1)
    best = min(c / (1 + np.minimum(n, right)).mean() for n, c in zip(LENGTHS, COSTS, strict=True))
    assert time[200:].sum() / tokens[200:].sum() < 1.08 * best < 1


def test_it_drafts_nothing_where_drafting_does_not_pay():
    """After the first rounds a hopeless draft is tried once in `period` rounds, never twice, by all rows together."""
    limits = np.asarray(run(ADAPTIVE, jnp.zeros((2000, 3), jnp.int32)))
    assert (limits == limits[:, :1]).all()
    tries = np.flatnonzero(limits[:, 0])
    late = tries[tries > 500]
    assert (limits[late, 0] == LENGTHS[1]).all() and (late % PERIOD == 0).all()
    assert (np.diff(late) == PERIOD).all() and len(late) > 20


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


def test_small_gains_change_nothing():
    """A gain within the margin is no reason to move, and neither is a tie."""
    length = Adaptive((1.0, 1.0), (0, 1), margin=0.5, rate=0.1, prior=0.2)
    one = jnp.ones(1, jnp.int32)
    state = dataclasses.replace(length.init(1), choice=0 * one, seen=100 * one[None])
    # The running acceptance: .28 .352 .417 .475 .528, and 1.528 tokens are more than 1.5.
    for choice in (0, 0, 0, 0, 1):
        state = length.observe(state, one, one, jnp.ones(1, jnp.bool_))
        assert state.choice.tolist() == [choice], state


def test_ended_rows_rest():
    state = ADAPTIVE.init(2)
    after = ADAPTIVE.observe(state, *jnp.array([[8, 8], [0, 8]], jnp.int32), jnp.array([True, False]))
    changed = jax.tree.map(lambda new, old: (new != old).reshape(2, -1).any(1).tolist(), after, state)
    assert changed.acceptance == [True, False] and changed.rounds == changed.balance == [True, False]


PASSES = []


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Watched(tiny.HistoryModel):
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
        limit = length.longest(state.drafter_state.length_state, ~state.done).tolist()
        state, info = step(state)
        jax.effects_barrier()
        found.append((limit, info.accepted.tolist(), PASSES.copy()))
    return found


def test_a_round_without_drafts_is_a_plain_round():
    """The draft model does not run at all, and then reads what it missed before the next trial."""
    length = Adaptive((1.0, 1.5), (0, 2), period=20, allowance=0.1)
    found = watch_rounds(tiny.HistoryModel(-TARGET.a, -TARGET.b), length, 42)
    plain = [passes for limit, _, passes in found if limit == [0, 0]]
    assert len(plain) > 25 and all(passes == [("target", 1)] for passes in plain)
    drafting = [passes for limit, _, passes in found if limit == [2, 2]]
    assert drafting[0] == [("draft", 2), ("draft", 1), ("target", 3)]
    # 19 rounds were plain. The last token that the cache held, and what the window feeds, is not read again.
    assert drafting[-1] == [("draft", CATCH_UP_CHUNK)] * 2 + drafting[0]


def test_rounds_are_those_of_the_formula_through_generate():
    """Limits recorded round by round, against the formula fed with what was accepted."""
    length = Adaptive((1.0, 1.30137, 1.90271), (0, 1, 3), period=6, rate=0.3, advance=1.5)
    found = watch_rounds(tiny.nearby(TARGET, 0.8), length, 60)
    plain = PlainAdaptive((1.0, 1.30137, 1.90271), (0, 1, 3), rows=2, period=6, rate=0.3, advance=1.5)
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
        drafter = jaxspec.ModelDrafter(tiny.nearby(TARGET, 0.8), k=Adaptive(costs, (0, 2)))
        return jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=30)

    def traced(*args, **options):
        raise AssertionError("a model was traced again")

    cheap = generate((1.0, 1.01))
    monkeypatch.setattr(tiny.HistoryModel, "__call__", traced)
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
        (lambda: Adaptive((1.0, 2.0), (0, 2), margin="3%"), "a number as margin"),
        (lambda: Adaptive((1.0, 2.0), (0, 2), allowance=-0.1), "allowance at least 0, got -0.1"),
        (lambda: Adaptive((1.0, 2.0), (0, 2), advance=20.0), "reserve at least 20.0, got 12.0"),
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
    costs = measure_costs(TARGET, jaxspec.ModelDrafter(tiny.nearby(TARGET, 0.3)), (0, 2), batch=2, text=12, repeats=1)
    assert len(costs) == 2 and min(costs) > 0
    assert Adaptive(costs, (0, 2)).lengths == (0, 2)
    with pytest.raises(TypeError, match="a drafter that takes a DraftLength, got NoDrafter"):
        measure_costs(TARGET, NoDrafter())
