"""`jaxspec plan`: what its options ask for, what it prints, and mistakes in one line."""

import json

import pytest
import typer.testing

from jaxspec.bench.costs import RoundCost
from jaxspec.bench.plan import plan as planning
from jaxspec.bench.plan.deviation import deviation
from jaxspec.bench.plan.plan import Plan
from jaxspec.bench.plan.prediction import Prediction
from jaxspec.bench.plan.recommendation import crossover, recommend
from jaxspec.bench.plan.roofline import Device, Roofline
from jaxspec.bench.setting import Setting
from jaxspec.cli import app as application
from tests._fixtures.plans import CASE, FAST, GOOD, SLOW, acceptance, summary

MACHINE = {"device": "a chip", "jaxspec": "0", "jax": "1", "python": "3", "dtype": "float32", "kernels": "xla"}
GAINS = {1: FAST, 8: SLOW}
AFTER = RoundCost(2.0, 0.1, 1.7, 1.1)


def _plan(setting: Setting, questions) -> Plan:
    cost, answers = RoundCost(1.5, 0.1, 1.4, 1.1), acceptance(GOOD)
    runs = {batch: summary(GAINS[batch], GAINS[batch], batch=batch) for batch in setting.batches}
    predictions = tuple(Prediction(batch, CASE.label, 2, cost, 1.8, 1.5) for batch in setting.batches)
    return Plan(
        setting=setting.described(questions),
        machine=MACHINE,
        device=Device(1e11, 2e13),
        acceptances=(answers,),
        rooflines=tuple(Roofline(batch, 40, 10**8, 1e9, 0.001, 0.01, True) for batch in setting.batches),
        predictions=predictions,
        recommendations=tuple(recommend(one, runs[one.batch], CASE, answers) for one in predictions),
        deviations=tuple(deviation(one, runs[one.batch], AFTER, 3) for one in predictions),
        crossover=crossover({batch: GAINS[batch][1] for batch in setting.batches}) if setting.batches[1:] else None,
    )


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What a plan was asked for; none is measured."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))
    found = []

    def make(setting, questions, *, tell):
        tell("measuring")
        found.append((setting, questions))
        return _plan(setting, questions)

    monkeypatch.setattr(planning, "make_plan", make)
    return found


def _run(*arguments):
    return typer.testing.CliRunner().invoke(application.app, ["plan", *map(str, arguments)])


def test_options_are_a_setting(asked, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"turns": ["hi"]}\n{"turns": ["ho"]}\n')
    words = ("-m", "target", "-d", "ngram", "-d", "eagle", "-k", 2, "-k", 4, "--batch", 1, "--batch", 8, "-t", 0.7)
    assert _run(*words, "-n", 9, "--repeats", 3, "--seed", 5, "--questions", tmp_path / "q.jsonl").exit_code == 0
    ((setting, questions),) = asked
    assert setting == Setting("target", ("ngram", "eagle"), (2, 4), (1, 8), (0.7,), 9, 3, 5)
    assert [one.turns for one in questions] == [("hi",), ("ho",)]


def test_by_default_it_asks_some_of_our_questions(asked):
    assert _run().exit_code == 0
    ((setting, questions),) = asked
    assert (setting.drafters, setting.lengths, setting.batches, setting.temperatures) == (("auto",), (), (1,), (0.0,))
    assert len(questions) == 12


def test_it_prints_tables_and_what_to_do(asked):
    result = _run("--batch", 1, "--batch", 8)
    assert result.exit_code == 0, result.stderr
    for part in (
        "after 40 tokens, on a device that reads 100.0 GB/s and computes 20,000.0 GFLOP/s",
        "accept 1",
        "predicted, batch 8: tokens of a round and its time in plain steps, of 10.00 ms each",
        "ngram, k=2, batch 8",
        "batch 1: use ngram, k=2. Whole answers were FASTER than plain decoding: 1.30x",
        "\nbatch 1: the prediction for ngram, k=2 was 8% below the run, 1.20x for 1.30x.\n",
        "\nwarning: batch 8: the prediction for ngram, k=2 was 50% above the run, 1.20x for 0.80x. "
        "Off most was the target's pass over 3 tokens: 1.40 plain steps predicted, 1.70 measured.\n",
        "--draft ngram -k 2\n",
        "batch 8: decode plainly. The best case, ngram, k=2, was SLOWER than plain decoding: 0.80x",
        "--draft none\n",
        "pays at batch 1 and no longer at batch 8: both ways of decoding are equally fast at about 3.",
    ):
        assert part in result.stdout
    assert max(map(len, result.stdout.split("batch 1: use")[0].splitlines())) <= 120
    assert "Speculation" not in _run().stdout


def test_json_is_one_object(asked):
    result = _run("--json")
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert record["recommendations"][0]["drafter"] == "ngram" and record["recommendations"][0]["k"] == 2
    assert record["command"].startswith("jaxspec ") and record["crossover"] is None
    assert record["rooflines"][0]["share"] == 0.1
    (far,) = record["deviations"]
    assert far["off"] == pytest.approx(1.2 / 1.3 - 1) and not far["warns"] and len(far["parts"]) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-d", "none"), "plain decoding is always measured"),
        (("-k", 0), "k must be at least 1, got 0"),
        (("--batch", 0), "batch must be at least 1, got 0"),
        (("-t", -1), "temperature must be at least 0, got -1"),
        (("--count", 0), "the number of questions must be at least 1, got 0"),
        (("--questions", "no-such-file.jsonl"), "no-such-file.jsonl"),
    ],
)
def test_mistakes_are_one_line(asked, arguments, said):
    result = _run(*arguments)
    assert result.exit_code == 2 and result.stdout == "" and not asked
    assert result.stderr.startswith("error: ") and said in result.stderr and len(result.stderr.splitlines()) == 1
