"""The table of drafters: what is counted, what rounds cost, and what they gain."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import zoo
from tests._fixtures import text_models, tiny
from tests.benchmarks import drafter_costs, drafters
from tests.benchmarks.counting import Counts
from tests.benchmarks.drafter_cases import choose_cases, weights_of
from tests.benchmarks.drafter_costs import DrafterCost, begun, measure_cost
from tests.benchmarks.drafter_tables import costs_markdown, markdown, total_of

TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB, layers=2), tokenizer=text_models.byte_level())
QUESTIONS = [{"turns": ["the sea", "hello"], "category": "writing"}, {"turns": ["one two three"], "category": "code"}]


def test_the_table_counts_rounds_and_not_tasks_over_all():
    qa = {"rounds": 10, "emitted": 20, "drafted": 40, "accepted": 10}
    rag = {"rounds": 30, "emitted": 30, "drafted": 60, "accepted": 0}
    found = {"eagle, tree, temperature 0": {"qa": qa, "rag": rag}, "n-gram, temperature 1": {"rag": rag}}
    assert markdown(found).splitlines() == [
        "| drafter | qa | rag | all | accepted |",
        "|---|---|---|---|---|",
        "| eagle, tree, T = 0 | 2.00 | 1.00 | **1.25** | 10% |",
        "| n-gram, T = 1 |  | 1.00 | **1.00** | 0% |",
    ]


def test_the_table_of_costs_is_of_greedy_rounds():
    counts = lambda emitted: {"qa": {"rounds": 10, "emitted": emitted, "drafted": 40, "accepted": 10}}
    found = {"a, temperature 0": counts(18), "b, temperature 0": counts(24), "b, temperature 1": counts(99)}
    times = {"drafts": 4, "low": 1.0, "high": 9.0}
    costs = {
        "a": times | {"round": 1.8, "share": 0.25},
        "b": times | {"round": 1.2, "share": 0.1},
    }
    assert costs_markdown(found, costs, {"a": 0.95}).splitlines() == [
        "| drafter | drafts | tokens a round | drafting | a round, in steps | measured |",
        "|---|---|---|---|---|---|",
        "| a | 4 | 1.80 | 25% | 1.80 | **0.95** |",
        "| b | 4 | 2.40 | 10% | 1.20 |  |",
    ]


def test_rounds_are_timed_in_steps_turn_by_turn(monkeypatch):
    asked = []

    def timed(target, drafter, prompt, *, repeats):
        asked.append((target, drafter.max_drafts, prompt, repeats))
        second = len(asked) == 2
        round_ = [3.0, 2.0, 1.0 if second else 3.0]
        return {"plain": [1.0, 2.0, 1.0], "round": round_, "verify": [1.5, 1.0, 1.0]}

    monkeypatch.setattr(drafter_costs, "time_rounds", timed)
    found = measure_cost(TARGET, jaxspec.NGramDrafter(k=2), [[1] * 30, [2] * 50], repeats=3)
    assert asked == [(TARGET, 2, prompt, 3) for prompt in ([1] * 30, [2] * 50)]
    assert (found.drafts, found.low, found.round, found.high) == (2, 1.0, 2.0, 3.0)
    assert found.share == pytest.approx(1 - 0.5)


def test_results_of_other_weights_are_measured_again(tmp_path):
    path, labels = tmp_path / "drafters.json", [f"eagle, temperature {t}" for t in (0, 1)]
    first = drafters.Results(path, {"count": 1})
    first.renew({"eagle": "one", "eagle, tree": "one", "n-gram": None})
    first.found = dict.fromkeys([*labels, "eagle, tree, temperature 0", "n-gram, temperature 0"], {})
    first.costs, first.measured = {"eagle": {}, "n-gram": {}}, {"eagle": 1.0}
    first.write()
    again = drafters.Results(path, {"count": 1})
    again.renew({"eagle": "two", "eagle, tree": "one", "n-gram": None})
    assert list(again.found) == ["eagle, tree, temperature 0", "n-gram, temperature 0"]
    assert list(again.costs) == ["n-gram"] and not again.measured


@pytest.mark.slow
def test_what_tells_weights_apart(tmp_path):
    shipped = [weights_of("smollm2-135m-instruct", name) for name in ("eagle", "eagle, tree", "ngram+eagle")]
    assert len(set(shipped)) == 1 and shipped[0] and shipped[0] != weights_of("smollm2-135m-instruct", "medusa")
    assert weights_of("smollm2-135m-instruct", "n-gram") is None
    (tmp_path / "model.safetensors").write_bytes(b"some")
    assert weights_of("tiny", str(tmp_path))


def test_names_are_those_that_ship_and_others():
    found = choose_cases("tiny", TARGET, [], ["suffix", "early-exit"], None)
    assert list(found) == ["n-gram", "suffix", "early-exit"]
    made = found["early-exit"]()
    assert (type(made).__name__, made.layers, made.k) == ("EarlyExitDrafter", 1, 4)
    shipped = choose_cases("smollm2-135m-instruct", TARGET, ["eagle, tree"], [], None)
    assert list(shipped) == ["eagle, tree"] and zoo.find_drafter("smollm2-135m-instruct/eagle")
    with pytest.raises(ValueError, match="no drafter 'eagel' with tiny; choose from n-gram"):
        choose_cases("tiny", TARGET, ["eagel"], [], None)
    with pytest.raises(ValueError, match="'suffix' is measured already"):
        choose_cases("tiny", TARGET, [], ["suffix", "suffix"], None)


@pytest.mark.slow
def test_an_answer_is_begun():
    prompt = [5, 6, 7] * 169  # there is room for five tokens more
    found = begun(TARGET, prompt)
    result = jaxspec.generate(TARGET, None, np.array([prompt], np.int32), max_new_tokens=5, stop_tokens=[0])
    answer = result.tokens[0, : int(result.length[0])].tolist()
    assert found == prompt + [token for token in answer if token not in TARGET.tokenizer.eos_token_ids]


def _run(*words):
    drafters.run(drafters.parser().parse_args([*map(str, words)]))


@pytest.fixture
def tiny_model(monkeypatch, tmp_path):
    monkeypatch.setattr(drafters, "load", lambda *_, **__: TARGET)
    monkeypatch.setattr(drafters, "native_if_possible", lambda model: model)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # tiny programs may stay
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    return tmp_path


def _words(folder, *more):
    asked = ["--questions", folder / "questions.jsonl", "--temperatures", 0, "--out", folder / "out.json"]
    return [*asked, "--drafters", "n-gram", "--costs", "--repeats", 1, "--batch", 2, *more]


def test_everything_is_counted_and_timed_with_native_products(tiny_model, monkeypatch):
    native, used = dataclasses.replace(TARGET), []
    monkeypatch.setattr(drafters, "native_if_possible", lambda model: native)

    def note(result):
        return lambda target, *_, **__: used.append(target) or result

    cost = DrafterCost(4, 1.0, 1.0, 1.0, 0.1)
    monkeypatch.setattr(drafters, "ask", note({"qa": Counts(1, 2, 4, 1)}))
    monkeypatch.setattr(drafters, "begun", note([1]))
    monkeypatch.setattr(drafters, "measure_cost", note(cost))
    one = types.SimpleNamespace(task="all", case="n-gram", decode_speedup=None)
    monkeypatch.setattr(drafters, "measure_cases", note([one]))
    _run(*_words(tiny_model, "--measure", 1))
    assert len(used) >= 4 and all(target is native for target in used)


def test_a_run_is_kept_and_goes_on(tiny_model, capsys, monkeypatch):
    calls = []

    def ask(target, drafter, questions, *, policy, max_new_tokens, batch):
        calls.append((type(drafter).__name__, len(questions), policy, max_new_tokens, batch))
        return {"code": Counts(rounds=10, emitted=15, drafted=20, accepted=5)}

    monkeypatch.setattr(drafters, "ask", ask)
    monkeypatch.setattr(drafters, "begun", lambda target, prompt: prompt)
    monkeypatch.setattr(drafters, "measure_cost", lambda *_, **__: DrafterCost(4, 1.25, 1.0, 2.0, 0.2))
    _run(*_words(tiny_model, "--max-new-tokens", 8, "--drafter", "suffix"))
    assert calls == [(name, 2, jaxspec.Greedy(), 8, 2) for name in ("NGramDrafter", "SuffixDrafter")]
    kept = json.loads((tiny_model / "out.json").read_text())
    assert list(kept["found"]) == ["n-gram, temperature 0", "suffix, temperature 0"]
    row = "| n-gram | 4 | 1.50 | 20% | 1.25 |  |"
    assert row in capsys.readouterr().out
    monkeypatch.setattr(drafters, "ask", None)
    monkeypatch.setattr(drafters, "measure_cost", None)
    gains = iter((types.SimpleNamespace(median=0.75), None))
    checked = []

    def measure_cases(target, cases, questions, setting):
        _, case = cases
        run = (setting.max_new_tokens, *setting.batches, *setting.temperatures)
        checked.append((case.name, case.drafter.max_drafts, len(questions), *run))
        return [types.SimpleNamespace(task="all", case=case.label, decode_speedup=next(gains))]

    monkeypatch.setattr(drafters, "measure_cases", measure_cases)
    _run(*_words(tiny_model, "--max-new-tokens", 8, "--measure", 1, "--drafter", "suffix"))
    assert [one[2:] for one in checked] == [(1, 8, 1, 0.0)] * 2 and checked[0][:2] == ("n-gram", 4)
    assert row.replace("|  |", "| **0.75** |") in capsys.readouterr().out
    assert json.loads((tiny_model / "out.json").read_text())["measured"] == {"n-gram": 0.75, "suffix": None}
    with pytest.raises(ValueError, match="results of another setting"):
        _run(*_words(tiny_model, "--max-new-tokens", 9))


@pytest.mark.slow
def test_a_run_behind_source_text(tiny_model, capsys):
    _run(*_words(tiny_model, "--max-new-tokens", 24, "--context", 300, "--drafter", "sparse-cache"))
    kept = json.loads((tiny_model / "out.json").read_text())
    for name in ("n-gram", "sparse-cache"):
        (total,) = [total_of(counts) for label, counts in kept["found"].items() if label.startswith(name)]
        assert 2 <= total.emitted <= 48
        # The last round of each of two answers may keep more than the budget has room for: at most its four drafts.
        assert 0 <= total.rounds + total.accepted - total.emitted <= 2 * 4
        assert kept["costs"][name]["round"] > 0
    assert "| sparse-cache | 4 |" in capsys.readouterr().out


def test_options_that_do_not_fit_say_so(tiny_model):
    with pytest.raises(ValueError, match="pass --context too"):
        _run("--questions", "source")
    with pytest.raises(ValueError, match="pass these too"):
        _run("--costs", "--measure", 2)
    with pytest.raises(ValueError, match="add 0"):
        _run("--questions", "code", "--costs", "--temperatures", 1)
    with pytest.raises(ValueError, match="the target takes 512, prompt and answer together; pass 512 or fewer"):
        _run("--questions", "code", "--context", 4096)
