"""`jaxspec plan`: its options, its output, and one-line errors."""

import json

import pytest
import typer.testing

from jaxspec.bench import plan as planning
from jaxspec.bench.cases import Setting
from jaxspec.bench.plan import Plan, crossover, recommend
from jaxspec.cli import app as application
from tests._fixtures.plans import CASES, FAST, SLOW, summary

MACHINE = {"device": "a chip", "jaxspec": "0", "jax": "1", "python": "3", "dtype": "float32", "kernels": "xla"}
GAINS = {1: FAST, 8: SLOW}


def _plan(setting: Setting, questions) -> Plan:
    runs = [summary(GAINS[batch], GAINS[batch], batch=batch) for batch in setting.batches]
    return Plan(
        setting=setting.described(questions),
        machine=MACHINE,
        summaries=tuple(runs),
        recommendations=tuple(recommend([one], CASES) for one in runs),
        crossover=crossover({batch: GAINS[batch][1] for batch in setting.batches}) if setting.batches[1:] else None,
    )


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Records requests for plans, and measures nothing."""
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
        "speed-up over plain decoding, batch 8, temperature 0",
        "0.80 (0.70-0.90)",
        "batch 1: use ngram, k=2. Whole answers were FASTER than plain decoding: 1.30x",
        "--drafter ngram -k 2 --temperature 0\n",
        "batch 8: decode plainly. The best case, ngram, k=2, was SLOWER than plain decoding: 0.80x",
        "--drafter none --temperature 0\n",
        "pays off at batch 1, but no longer at batch 8: both ways of decoding are equally fast at about 3.",
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
    assert record["summaries"][0]["speedup"]["median"] == 1.3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-d", "none"), "plain decoding is always measured"),
        (("-k", 0), "k must be at least 1, got 0"),
        (("--batch", 0), "batch must be at least 1, got 0"),
        (("-t", -1), "temperature must be at least 0, got -1"),
        (("--count", 0), "--count must be at least 1, got 0"),
        (("--questions", "no-such-file.jsonl"), "no-such-file.jsonl"),
    ],
)
def test_mistakes_are_one_line(asked, arguments, said):
    result = _run(*arguments)
    assert result.exit_code == 2 and result.stdout == "" and not asked
    assert result.stderr.startswith("error: ") and said in result.stderr and len(result.stderr.splitlines()) == 1
