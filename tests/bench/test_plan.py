"""What follows from counts and times: predictions, limits, recommendations. No model runs."""

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.bench import timing
from jaxspec.bench.cases import Case
from jaxspec.bench.costs import RoundCost
from jaxspec.bench.plan import roofline as roofs
from jaxspec.bench.plan.prediction import Prediction, predict
from jaxspec.bench.plan.recommendation import Crossover, crossover, recommend
from jaxspec.bench.plan.roofline import Device, measure_device, pass_bytes, pass_operations, roofline
from jaxspec.bench.questions import Group
from jaxspec.drafters.ngram import NGramDrafter
from tests._fixtures import tiny
from tests._fixtures.clock import Clock
from tests._fixtures.plans import CASE, FAST, GOOD, POOR, SLOW, acceptance, one_answer, summary


def _predict(kept, members, cost, k=2):
    groups = [Group("qa", one) for one in members]
    return predict(kept, groups, Case("d", "d", NGramDrafter(k=k)), cost)


@pytest.mark.parametrize(("a", "k", "c"), [(0.5, 1, 0.1), (0.5, 4, 0.1), (0.75, 2, 0.25)])
def test_for_one_row_it_is_the_theorem(a, k, c):
    rounds = 4**4  # powers of `a` over it are whole numbers
    kept = [round(rounds * a**place) for place in range(1, 5)]
    answer = one_answer(0, rounds + sum(kept), rounds, [rounds] * 4, kept)
    found = _predict(acceptance(answer), [(0,)], RoundCost(1 + k * c, k * c, 1.0, None), k)
    assert found.speedup == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)), rel=1e-12)


def test_rounds_without_drafts_take_less():
    kept = acceptance(one_answer(0, 14, 10, [4, 4], [3, 1]))
    found = _predict(kept, [(0,)], RoundCost(3.0, 0.5, 2.5, idle=1.5))
    assert (found.round_gain, found.round_cost) == pytest.approx((1.4, 0.6 * 1.5 + 0.4 * 3.0))
    # A drafter that always drafts has no such rounds.
    assert _predict(kept, [(0,)], RoundCost(3.0, 0.5, 2.5, None)).round_cost == pytest.approx(3.0)


def test_a_batch_goes_on_until_its_last_row_has_ended_and_drafts_where_any_does():
    rows = (one_answer(0, 12, 6, [3, 3], [3, 3]), one_answer(1, 10, 10, [5, 5], [0, 0]))
    found = _predict(acceptance(*rows), [(0, 1)], RoundCost(2.0, 0.1, 1.9, 1.0))
    # 22 tokens in 10 rounds; without drafts in 12 steps. Half the rounds of each draft.
    assert found.round_gain == pytest.approx((22 / 10) / (22 / 12))
    assert found.round_cost == pytest.approx(0.25 * 1.0 + 0.75 * 2.0)
    # The same question twice drafts at the same time.
    twice = _predict(acceptance(*rows), [(0, 0)], RoundCost(2.0, 0.1, 1.9, 1.0))
    assert (twice.round_gain, twice.round_cost) == pytest.approx((2.0, 1.5))


def test_turns_and_batches_are_added_by_their_time():
    rows = (one_answer(0, 8, 4, [4], [4]), one_answer(0, 9, 9, [9], [0], turn=1), one_answer(1, 3, 3, [3], [0]))
    found = _predict(acceptance(*rows), [(0,), (1,)], RoundCost(1.25, 0.1, 1.1, None), k=1)
    assert found.speedup == pytest.approx(20 / (16 * 1.25))


def test_of_fewer_drafts_the_first_ones_count():
    kept = acceptance(one_answer(0, 27, 10, [10, 9, 8], [8, 6, 3]))
    for k, tokens in ((1, 1.8), (2, 2.4), (3, 2.7)):
        assert _predict(kept, [(0,)], RoundCost(1.0, 0.0, 1.0, None), k).round_gain == pytest.approx(tokens)
    with pytest.raises(ValueError, match="measured with k=3, got k=4"):
        _predict(kept, [(0,)], RoundCost(1.0, 0.0, 1.0, None), 4)


def test_answers_are_counted_together():
    found = acceptance(one_answer(0, 12, 6, [3, 3], [3, 3]), one_answer(1, 10, 10, [5, 5], [0, 0]))
    assert (found.rounds, found.drafting, found.accepted_at) == (16, 0.5, (3 / 16, 3 / 16))


@pytest.mark.parametrize("tied", [True, False])
def test_operations_and_bytes_of_a_step(tied):
    model = tiny.transformer(0, vocab=32, layers=2, tied_head=tied)
    # Width 16, two query heads and one key-value head of 8, inner width 24; a head of 32 tokens.
    attention, inner, head = 16 * 16 + 2 * 16 * 8 + 16 * 16, 3 * 16 * 24, 32 * 16
    matrices, looked_at = 2 * (attention + inner) + head, 2 * 2 * (2 * 8) * 10
    assert pass_operations(model, 3, 10) == 2.0 * 3 * (matrices + looked_at)
    norms = 5 * 16
    assert pass_bytes(model, 3, 10) == 4 * (matrices + norms) + 3 * 10 * 4 * (2 * 2 * 8)


@pytest.mark.parametrize("options", [{}, {"bits": 4, "group": 8}])
def test_a_quantized_step_reads_less_and_computes_the_same(options):
    model = tiny.transformer(0, vocab=32, layers=2, tied_head=False)
    small = jax.eval_shape(lambda model: jaxspec.quantize_weights(model, **options), model)
    assert pass_operations(small, 3, 10) == pass_operations(model, 3, 10)
    attention, inner, head = 16 * 16 + 2 * 16 * 8 + 16 * 16, 3 * 16 * 24, 32 * 16
    matrices, outputs = 2 * (attention + inner) + head, 2 * (16 + 2 * 8 + 16 + 2 * 24 + 16) + 32
    groups = 2 * ((16 + 2 * 8 + 16 + 2 * 24) * 2 + 16 * 3) + 32 * 2  # of 8 of 16 inputs, or of the 24 of an inner layer
    weights = matrices // 2 + 4 * groups if options else matrices + 4 * outputs
    assert pass_bytes(small, 0, 0) == weights + 4 * 5 * 16  # the norms'


def test_a_roof_is_the_slower_of_reading_and_computing():
    model = tiny.transformer(0)
    size, operations = pass_bytes(model, 4, 10), pass_operations(model, 4, 10)
    slow_memory = roofline(model, Device(size / 2.0, operations), batch=4, text=10, seconds=8.0)
    assert slow_memory.by_memory and slow_memory.least_seconds == 2.0 and slow_memory.share == 0.25
    slow_arithmetic = roofline(model, Device(size, operations / 4.0), batch=4, text=10, seconds=8.0)
    assert not slow_arithmetic.by_memory and slow_arithmetic.share == 0.5


def test_a_device_is_measured_until_products_are_long(monkeypatch):
    passes = []
    monkeypatch.setattr(roofs, "bandwidth_probe", lambda count: passes.append(count) or (lambda: jnp.zeros(())))
    monkeypatch.setattr(roofs, "_SIZES", (8, 16, 32))
    # One turn warms up and one counts: of reading, of products of 8 and 16 in bfloat16, then of 8 alone in float32.
    monkeypatch.setattr(timing, "clock", Clock([9.0, 4.0, 9.0, 0.002, 9.0, 0.05, 9.0, 0.4]))
    found = measure_device(jnp.bfloat16, repeats=1)
    assert found.bandwidth == passes[0] * 2**29 / 4.0
    assert found.peak == pytest.approx(2 * 8**3 / 0.002)


SILENT = one_answer(0, 10, 10, [0, 0], [0, 0])


@pytest.mark.parametrize(
    ("gain_and_cost", "speedup", "decode", "answer", "cost", "said"),
    [
        (
            (1.8, 1.2),
            FAST,
            FAST,
            GOOD,
            (0.1, 1.1),
            "use ngram, k=2. Whole answers were FASTER than plain decoding: 1.30x (repeats 1.20 to",
        ),
        ((1.8, 1.2), (0.9, 1.1, 1.4), FAST, GOOD, (0.1, 1.1), "Not in every repeat"),
        # A run decides, and not a prediction.
        ((1.8, 2.0), FAST, FAST, GOOD, (0.1, 1.1), "use ngram, k=2."),
        (
            (1.8, 1.2),
            SLOW,
            SLOW,
            GOOD,
            (0.1, 1.1),
            "decode plainly. The best case, ngram, k=2, was SLOWER than plain decoding: 0.80x",
        ),
        ((1.8, 1.2), SLOW, SLOW, GOOD, (0.1, 1.1), "took 2.00 times as long (predicted 1.20)"),
        ((1.8, 1.2), SLOW, None, GOOD, (0.1, 1.1), "too short to time"),
        ((1.8, 1.2), SLOW, FAST, GOOD, (0.1, 1.1), "Decoding alone was 1.30 times as fast: longer answers"),
        ((1.2, 2.0), SLOW, SLOW, POOR, (0.1, 1.9), "Only 20% of its first drafts are accepted"),
        ((1.0, 1.1), SLOW, SLOW, SILENT, (0.1, 1.9), "found nothing to draft"),
        ((1.8, 2.0), SLOW, SLOW, GOOD, (0.7, 1.3), "drafts alone take 0.70 plain steps: a cheaper drafter"),
        ((1.8, 2.0), SLOW, SLOW, GOOD, (0.1, 1.9), "verify them takes 1.90 plain steps on this device: draft fewer."),
    ],
)
def test_recommendations_say_why(gain_and_cost, speedup, decode, answer, cost, said):
    round_cost = RoundCost(gain_and_cost[1], *cost, None)
    measured = summary(speedup, decode, cost=None if decode is None else 2.0)
    prediction = Prediction(1, CASE.label, 2, round_cost, *gain_and_cost)
    found = recommend(prediction, measured, CASE, acceptance(answer))
    assert said in found.text and found.text.startswith("batch 1: ")
    chosen = (found.speculate, found.drafter, found.k)
    assert chosen == ((True, "ngram", 2) if "use ngram" in found.text else (False, "none", 0))


@pytest.mark.parametrize(
    ("speedups", "found"),
    [
        ({1: 1.5, 4: 1.1}, Crossover(4, None, None)),
        ({1: 0.9, 4: 0.8}, Crossover(None, 1, None)),
        ({16: 0.75, 1: 1.5, 4: 1.25}, Crossover(4, 16, pytest.approx(8.0))),
        # The largest batch that pays counts, also where a smaller one does not.
        ({1: 1.2, 2: 0.9, 4: 1.1, 16: 0.9}, Crossover(4, 16, pytest.approx(8.0))),
    ],
)
def test_crossover(speedups, found):
    assert crossover(speedups) == found
    assert crossover(speedups).text.startswith("Speculation pays ")
