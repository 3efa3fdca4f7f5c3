"""A plan of a tiny model: what is counted and timed, in which state, and what is told of it."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.bench import costs as costing
from jaxspec.bench import timing
from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.costs import RoundCost, measure_parts
from jaxspec.bench.plan import plan as planning
from jaxspec.bench.plan.plan import make_plan, measure_acceptance
from jaxspec.bench.plan.prediction import Acceptance, Answer
from jaxspec.bench.plan.report import as_record, command, notes, tables
from jaxspec.bench.plan.roofline import Device
from jaxspec.bench.setting import Setting
from jaxspec.core.sampling import Greedy
from jaxspec.drafters.base import NoDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.training.prompts import Conversation
from tests._fixtures import text_models, tiny
from tests._fixtures.clock import Clock

TARGET = dataclasses.replace(tiny.transformer(3, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())
QUESTIONS = [Conversation(("the sea", "hello"), category="writing"), Conversation(("one two three",), category="qa")]
CASES = [Case(PLAIN, PLAIN, NoDrafter()), Case("ngram, k=2", "ngram", NGramDrafter(k=2))]
SETTING = Setting("tiny", ("ngram",), (2,), max_new_tokens=12, repeats=2)


@pytest.mark.slow
def test_acceptance_is_that_of_every_answer():
    long = Conversation(("word " * 600,), category="qa")
    found = measure_acceptance(TARGET, CASES[1], [*QUESTIONS, long], SETTING)
    assert [(one.question, one.turn) for one in found.answers] == [(0, 0), (0, 1), (1, 0)]
    assert (found.name, found.k) == ("ngram", 2)
    ids = TARGET.tokenizer.apply_chat_template([{"role": "user", "content": "one two three"}])
    padded = np.asarray([ids + [0] * (64 - len(ids))], np.int32)
    options = {"prompt_length": len(ids), "max_new_tokens": 12, "stop_tokens": TARGET.tokenizer.eos_token_ids}
    stats = jaxspec.generate(TARGET, CASES[1].drafter, padded, **options).stats
    last = found.answers[-1]
    assert (last.prompt_tokens, last.tokens, last.rounds) == (len(ids), int(stats.emitted[0]), int(stats.rounds[0]))
    assert last.drafted_at == tuple(stats.drafted_at[0].tolist())
    for one in found.answers:
        # A round gives one token more than it keeps, but for the last, which the budget may cut.
        assert one.tokens - one.rounds - sum(one.accepted_at) in (0, -1)
        assert one.rounds_at(2) == one.rounds <= one.rounds_at(1)
    with pytest.raises(ValueError, match="no question fits"):
        measure_acceptance(TARGET, CASES[1], [long], SETTING)


def test_rounds_are_timed_with_all_drafts_and_with_none(monkeypatch):
    repeat, started = costing.repeat_round, {}

    def kept(target, drafter, verifier, state, *, count):
        started.setdefault(drafter.max_drafts, []).append(state)
        return repeat(target, drafter, verifier, state, count=count)

    monkeypatch.setattr(costing, "repeat_round", kept)
    # Of each turn: a plain round, then the case's round, draft, verification, and round without drafts.
    first, second = [8.0, 16.0, 4.0, 12.0, 10.0], [80.0, 160.0, 8.0, 120.0, 100.0]
    monkeypatch.setattr(timing, "clock", Clock([99.0] * 5 + first + second))
    plain, costs = measure_parts(TARGET, CASES, batch=2, text=10, capacity=40, sampling=Greedy(), repeats=2)
    cost = costs["ngram, k=2"]
    assert plain == 44.0 / costing.ROUNDS and list(costs) == ["ngram, k=2"]
    assert (cost.round, cost.draft, cost.verify) == pytest.approx((2.0, (0.5 + 0.1) / 2, 1.5))
    assert cost.idle == pytest.approx(1.25)
    full, silent = started[2][:2]
    for state, drafts in ((full, [2, 2]), (silent, [0, 0])):
        assert state.length.tolist() == [10, 10]
        assert state.tokens.shape == (2, 16 + (40 - 10) + 2 + 1)  # the prompt's width is rounded up
        info = jaxspec.jit_step()(TARGET, CASES[1].drafter, None, state)[1]
        assert info.drafted.tolist() == drafts


@pytest.fixture(scope="module")
def plan():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "load_target", lambda _: (TARGET, TARGET))
        patch.setattr(planning, "measure_device", lambda *_, **__: Device(2e10, 1e11))
        patch.setattr(jax, "clear_caches", lambda: None)  # tiny programs may stay
        told = []
        setting = dataclasses.replace(SETTING, lengths=(), batches=(1, 2), repeats=1)
        found = make_plan(setting, QUESTIONS, tell=told.append)
    assert told[0] == "loading the models" and any("question 2 of 2" in text for text in told)
    return found


@pytest.mark.parametrize(("short", "long", "k"), [(1.1, 3.0, 2), (3.0, 1.1, 4)])
def test_the_case_that_is_predicted_to_be_fastest_is_run(monkeypatch, short, long, k):
    answer = Answer(0, 0, prompt_tokens=8, tokens=12, rounds=4, drafted_at=(4,) * 4, accepted_at=(4, 2, 1, 1))
    costs = {f"ngram, k={n}": RoundCost(cost, 0.1, 1.0) for n, cost in ((2, short), (4, long))}
    asked = []
    compared = lambda best, measured, cost, fed: (best, measured.case, cost, fed)
    checked = lambda target, plain, case, questions, setting, tell: SimpleNamespace(case=case.label, speedup=None)
    monkeypatch.setattr(planning, "load_target", lambda _: (TARGET, TARGET))
    monkeypatch.setattr(planning, "measure_device", lambda _: Device(2e10, 1e11))
    monkeypatch.setattr(planning, "measure_acceptance", lambda *_, **__: Acceptance("ngram", 4, (answer,)))
    monkeypatch.setattr(planning, "measure_parts", lambda *parts, **options: asked.append(options) or (1.0, costs))
    monkeypatch.setattr(planning, "deviation", compared)
    monkeypatch.setattr(planning, "check", checked)
    monkeypatch.setattr(planning, "recommend", lambda best, measured, *_: SimpleNamespace(best=best, measured=measured))
    found = make_plan(dataclasses.replace(SETTING, lengths=()), QUESTIONS[1:])
    (one,) = found.recommendations
    assert one.best is max(found.predictions, key=lambda prediction: prediction.speedup)
    assert (one.best.k, one.best.case, one.measured.case) == (k, f"ngram, k={k}", f"ngram, k={k}")
    # Its parts are timed again after the run, in the same way, and compared with what they were before.
    assert found.deviations == ((one.best, f"ngram, k={k}", costs[f"ngram, k={k}"], k + 1),)
    assert asked[0] == asked[1] and (asked[0]["text"], asked[0]["capacity"]) == (14, 500 + 12)


@pytest.mark.slow
def test_a_plan_is_whole(plan):
    assert [(one.batch, one.k) for one in plan.predictions] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert [one.k for one in plan.acceptances] == [4]
    assert [one.batch for one in plan.rooflines] == [1, 2]
    for one in plan.recommendations:
        same = [other for other in plan.predictions if other.batch == one.predicted.batch]
        assert one.predicted is max(same, key=lambda other: other.speedup)
        assert (one.measured.batch, one.measured.case) == (one.predicted.batch, one.predicted.case)
        assert one.speculate == (one.measured.speedup.median > 1)
    # At temperature 0 a batch of one answers as it did when it was counted.
    first = plan.recommendations[0]
    if first.predicted.k == 4:
        assert first.measured.round_gain == pytest.approx(first.predicted.round_gain)
    assert plan.crossover is not None
    for one, far in zip(plan.recommendations, plan.deviations, strict=True):
        assert (far is None) == (one.measured.decode_speedup is None)
        if far is not None:
            assert (far.predicted, far.batch) == (one.predicted.speedup, one.predicted.batch)
            assert far.parts[0].measured == one.measured.round_gain


@pytest.mark.slow
def test_it_is_told_in_tables_and_in_json(plan):
    shown = list(tables(plan))
    assert len(shown) == 2 + len(plan.rooflines) + 1
    for table in shown:
        assert table.rows and {len(row) for row in table.rows} == {len(table.columns)}
    assert "reads 20.0 GB/s and computes 100.0 GFLOP/s" in shown[0].title
    assert [row[0] for row in shown[2].rows] == ["ngram, k=2", "ngram, k=4"]
    assert any("2 questions, at most 12 new tokens, temperature 0" in note for note in notes(plan))
    record = json.loads(json.dumps(as_record(plan, "jaxspec plan")))
    assert record["command"] == "jaxspec plan" and record["device"] == {"bandwidth": 2e10, "peak": 1e11}
    assert [one["speedup"] for one in record["predictions"]] == [one.speedup for one in plan.predictions]
    assert [one["text"] for one in record["recommendations"]] == [one.text for one in plan.recommendations]


@pytest.mark.slow
def test_a_recommendation_is_a_command(plan):
    one = plan.recommendations[0]
    use = dataclasses.replace(one, speculate=True, drafter="ngram", k=2)
    assert command(plan, use) == "jaxspec generate --model tiny --draft ngram -k 2"
    plainly = dataclasses.replace(one, speculate=False)
    assert command(plan, plainly) == "jaxspec generate --model tiny --draft none"
    warm = dataclasses.replace(plan, setting=plan.setting | {"temperatures": [0.7]}, recommendations=(use,))
    assert command(warm, use).endswith(" -k 2 --temperature 0.7")


def test_one_temperature_at_a_time():
    with pytest.raises(ValueError, match="one temperature, got 2"):
        make_plan(dataclasses.replace(SETTING, temperatures=(0.0, 1.0)), QUESTIONS)
