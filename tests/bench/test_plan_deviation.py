"""How far predictions are from their runs: by how much, and by which part. No model runs."""

import dataclasses

import pytest

from jaxspec.bench.costs import RoundCost
from jaxspec.bench.plan.deviation import deviation
from jaxspec.bench.plan.prediction import Prediction
from tests._fixtures.plans import FAST, summary

PREDICTED = RoundCost(1.5, draft=0.25, verify=1.0)


def _deviation(gain=1.8, decode=1.2, cost=1.5, draft=0.25, verify=1.0, idle=(None, None), whole=1.5):
    predicted = Prediction(2, "d, k=4", 4, dataclasses.replace(PREDICTED, idle=idle[0]), 1.8, whole)
    measured = summary(None, (decode,) * 3, gain, cost)
    return deviation(predicted, measured, RoundCost(9.0, draft, verify, idle[1]), 5)


def test_a_prediction_that_came_true_is_not_warned_of():
    found = _deviation(decode=1.1)
    assert found.off == pytest.approx(1.2 / 1.1 - 1) and not found.warns
    assert found.text == "batch 2: the prediction for d, k=4 was 9% above the run, 1.20x for 1.10x."
    assert _deviation(decode=1.04).warns and _deviation(decode=1.42).warns and not _deviation(decode=1.4).warns


@pytest.mark.parametrize(
    ("run", "name", "said"),
    [
        ({"gain": 1.4, "decode": 0.93}, "acceptance", "1.80 tokens a round predicted, 1.40 measured"),
        ({"draft": 0.75, "cost": 2.0, "decode": 0.9}, "the draft pass", "0.25 plain steps predicted, 0.75 measured"),
        ({"verify": 1.5, "cost": 2.0, "decode": 0.9}, "the target's pass over 5 tokens", "1.00 plain steps"),
        ({"cost": 2.0, "decode": 0.9}, "the rest of a round", "0.25 plain steps predicted, 0.75 measured"),
        # What went the other way does not explain it, however far it is off.
        ({"gain": 1.6, "draft": 0.05, "cost": 1.6, "decode": 1.0}, "the rest of a round", "0.25 plain steps predicted"),
        (
            {"gain": 1.35, "verify": 0.4, "cost": 1.35, "decode": 1.0},
            "the rest of a round",
            "0.25 plain steps predicted",
        ),
        ({"gain": 2.7, "draft": 0.75, "cost": 1.5, "decode": 1.8}, "acceptance", "33% below the run"),
    ],
)
def test_a_warning_names_the_part_that_was_off_most(run, name, said):
    found = _deviation(**run)
    assert found.warns and found.worst.name == name
    assert f"Off most was {name}: " in found.text and said in found.text
    assert found.as_record()["worst"] == name and found.as_record()["off"] == found.off


def test_effects_of_the_parts_are_the_whole_to_first_order():
    found = _deviation(gain=1.8 * 0.999, draft=0.251, verify=1.002, cost=1.5 + 0.004, decode=1.8 * 0.999 / 1.504)
    assert sum(part.effect for part in found.parts) == pytest.approx(found.off, rel=1e-2)


def test_passes_count_in_the_rounds_that_draft():
    """Half of the rounds draft: a round is 1.5 where it drafts, and 1.0 where it does not."""
    found = _deviation(idle=(1.0, 1.1), whole=1.25, draft=0.75, cost=1.7, decode=1.8 / 1.7)
    by_name = {part.name: part for part in found.parts}
    assert by_name["the draft pass"].effect == pytest.approx(0.5 * 0.5 / 1.25)
    idle, rest = by_name["a round without drafts"], by_name["the rest of a round"]
    assert (idle.predicted, idle.measured, idle.effect) == (1.0, 1.1, pytest.approx(0.5 * 0.1 / 1.25))
    assert (rest.predicted, rest.measured) == pytest.approx((0.25 - 0.5 * 0.25, 1.7 - 0.5 * 1.75 - 0.5 * 1.1))
    assert sum(part.effect for part in found.parts) == pytest.approx((1.7 - 1.25) / 1.25)
    assert Prediction(1, "", 1, RoundCost(1.0, 0.0, 1.0, 1.0), 1.0, 1.0).drafting == 1.0


def test_a_run_that_is_too_short_tells_nothing():
    assert deviation(Prediction(1, "d", 2, PREDICTED, 1.8, 1.5), summary(FAST, None), PREDICTED, 3) is None
    assert deviation(Prediction(1, "d", 2, PREDICTED, 1.8, 1.5), summary(FAST, FAST, cost=None), PREDICTED, 3) is None
