"""A plan: its measurements, its recommendations, and its report."""

import dataclasses
import json

import jax
import pytest

from jaxspec.bench import plan as planning
from jaxspec.bench.cases import Setting
from jaxspec.bench.plan import Crossover, crossover, make_plan, measure_cases, recommend
from jaxspec.bench.report import tables
from jaxspec.bench.summary import ALL
from jaxspec.training.prompts import Conversation
from tests._fixtures import text_models, tiny
from tests._fixtures.plans import CASES, FAST, SLOW, summary

TARGET = dataclasses.replace(tiny.transformer(3, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())
QUESTIONS = [Conversation(("the sea", "hello"), category="writing"), Conversation(("one two three",), category="qa")]
SETTING = Setting("tiny", ("ngram",), max_new_tokens=12, repeats=1)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (summary(FAST, FAST), "use ngram, k=2. Whole answers were FASTER than plain decoding: 1.30x (repeats 1.20 to"),
        (summary((0.9, 1.1, 1.4), FAST), "Not in every repeat"),
        (summary(SLOW, SLOW), "decode plainly. The best case, ngram, k=2, was SLOWER than plain decoding: 0.80x"),
        (summary(SLOW, SLOW), "A round took 2.00 times as long as a plain step and gave 1.50 times its tokens"),
        (summary(SLOW, None, cost=None), "(repeats 0.70 to 0.90). Its drafts were accepted but cost more"),
        (summary(SLOW, FAST, gain=2.5), "Decoding alone was faster, but the time of the prompts outweighed it"),
        (summary(SLOW, SLOW, accepted=0.2), "Only 20% of the drafts were accepted: use a drafter trained"),
        (summary(SLOW, SLOW), "use a cheaper drafter, draft fewer tokens (-k 1)."),
    ],
)
def test_recommendations_say_why(measured, said):
    found = recommend([measured], CASES)
    assert said in found.text and found.text.startswith("batch 1: ")
    chosen = (found.speculate, found.drafter, found.k)
    assert chosen == ((True, "ngram", 2) if "use ngram" in found.text else (False, "none", 0))


@pytest.mark.parametrize("k", [2, 4])
def test_the_fastest_case_is_recommended(k):
    """Over all tasks together: it may be slower on one of them."""
    runs = [summary(FAST if n == k else (1.0, 1.1, 1.2), FAST, k=n) for n in (2, 4)]
    tasks = [dataclasses.replace(summary((2.0, 3.0, 4.0), FAST, k=6 - k), task="qa")]
    found = recommend([*tasks, dataclasses.replace(runs[0], case="plain", speedup=None), *runs], CASES)
    assert (found.k, found.measured.case) == (k, f"ngram, k={k}")


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


def test_a_plan_measures_a_grid(monkeypatch):
    """Each drafter with its number of drafts and half of it, in turn with plain decoding, at each batch."""
    asked = []

    def measured(target, cases, questions, setting, *, tell):
        asked.append((setting.batches, [case.label for case in cases]))
        return [summary(FAST if setting.batches == (1,) else SLOW, FAST, batch=setting.batches[0], k=4)]

    monkeypatch.setattr(planning, "load_target", lambda _: (TARGET, TARGET))
    monkeypatch.setattr(planning, "measure_cases", measured)
    found = make_plan(dataclasses.replace(SETTING, batches=(1, 4)), QUESTIONS)
    labels = ["plain", "ngram, k=2", "ngram, k=4"]
    assert asked == [((1,), labels), ((4,), labels)]
    assert [(one.speculate, one.k) for one in found.recommendations] == [(True, 4), (False, 0)]
    assert (found.crossover.pays_at, found.crossover.not_from) == (1, 4)
    monkeypatch.setattr(planning, "measure_cases", lambda *_, **__: [])
    with pytest.raises(ValueError, match="no question fits the model's context; pass shorter ones, or lower"):
        make_plan(SETTING, QUESTIONS)


@pytest.fixture(scope="module")
def plan():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "load_target", lambda _: (TARGET, TARGET))
        patch.setattr(jax, "clear_caches", lambda: None)  # tiny programs may stay
        told = []
        found = make_plan(dataclasses.replace(SETTING, batches=(1, 2)), QUESTIONS, tell=told.append)
    assert told[0] == "loading the models" and any("batch 1: 2 of 2" in text for text in told)
    return found


@pytest.mark.slow
def test_a_plan_is_whole(plan):
    totals = [(one.batch, one.case) for one in plan.summaries if one.task == ALL]
    assert totals == [(batch, case) for batch in (1, 2) for case in ("plain", "ngram, k=2", "ngram, k=4")]
    for one in plan.recommendations:
        same = [each for each in plan.summaries if each.batch == one.measured.batch and each.task == ALL]
        assert one.measured.speedup.median == max(each.speedup.median for each in same if each.speedup)
        assert one.speculate == (one.measured.speedup.median > 1)
    assert plan.crossover is not None


@pytest.mark.slow
def test_it_is_told_in_tables_and_in_json(plan):
    shown = tables(plan.summaries)
    assert [[row[0] for row in table.rows] for table in shown[1::2]] == 2 * [["plain", "ngram, k=2", "ngram, k=4"]]
    assert any("2 questions, at most 12 new tokens, temperature 0" in note for note in plan.notes())
    record = json.loads(json.dumps(plan.as_record("jaxspec plan")))
    assert record["command"] == "jaxspec plan" and len(record["summaries"]) == len(plan.summaries)
    assert [one["text"] for one in record["recommendations"]] == [one.text for one in plan.recommendations]


@pytest.mark.slow
def test_a_recommendation_is_a_command(plan):
    one = plan.recommendations[0]
    use = dataclasses.replace(one, speculate=True, drafter="ngram", k=2)
    assert plan.command(use) == "jaxspec generate --model tiny --drafter ngram -k 2 --temperature 0"
    plainly = dataclasses.replace(one, speculate=False)
    assert plan.command(plainly) == "jaxspec generate --model tiny --drafter none --temperature 0"
    warm = dataclasses.replace(plan, setting=plan.setting | {"temperatures": [0.7]}, recommendations=(use,))
    assert warm.command(use).endswith(" -k 2 --temperature 0.7")


def test_one_temperature_at_a_time():
    with pytest.raises(ValueError, match="one temperature, got 2"):
        make_plan(dataclasses.replace(SETTING, temperatures=(0.0, 1.0)), QUESTIONS)


def test_texts_without_room_are_not_measured():
    assert measure_cases(TARGET, CASES, [Conversation(("word " * 600,), category="qa")], SETTING) == []
