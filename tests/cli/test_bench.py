"""`jaxspec bench`: its measurements and files, how it resumes, and one-line errors."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest
import typer.testing

import jaxspec
from jaxspec.bench.measure import Measurement
from jaxspec.bench.summary import summarize
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.orbax import save
from jaxspec.cli import app as application
from tests._fixtures import text_models, tiny

QUESTIONS = [
    {"turns": ["the sea", "hello"], "category": "writing"},
    {"turns": ["one two three"], "category": "qa"},
]
OPTIONS = ("-d", "ngram", "-k", "2", "-n", "12", "--repeats", "2", "--quiet")


@pytest.fixture(autouse=True)
def _own_compilation_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random model with its tokenizer, and questions."""
    tokenizer = text_models.byte_level()
    model = dataclasses.replace(tiny.transformer(3, vocab=tokenizer.vocab_size), tokenizer=tokenizer)
    path = tmp_path_factory.mktemp("bench")
    save(model, path / "model")
    (path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    return path


def _bench(folder, *arguments):
    words = ["bench", "-m", folder / "model", "--questions", folder / "questions.jsonl", *OPTIONS, *arguments]
    return typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(folder):
    """Completes a run; returns it with its output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "kept by the caller"))
        result = _bench(folder, "--out", folder / "out")
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture
def lines(folder, finished):
    return [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_everything_is_written(folder, finished, lines):
    assert [line["kind"] for line in lines] == ["run", "turn", "turn", "turn", *["summary"] * 6]
    assert lines[0]["command"].startswith("jaxspec ")
    assert {"device", "jax", "python", "jaxspec", "dtype"} <= lines[0]["machine"].keys()
    assert lines[0]["setting"]["questions"] == 2 and lines[0]["setting"]["max_new_tokens"] == 12
    text = (folder / "out" / "results.md").read_text()
    for part in (
        "speed-up over plain decoding, batch 1, temperature 0",
        "ngram, k=2",
        "than plain decoding",
    ):
        assert part in finished.stdout and part in text
    (drawn,) = (folder / "out" / "plots").iterdir()
    assert drawn.name == "speed-up-by-task-batch-1-temperature-0.svg" and "</svg>" in drawn.read_text()
    assert finished.stderr == ""


@pytest.mark.slow
def test_summaries_follow_from_the_lines(lines):
    expected = [dataclasses.asdict(one) for one in summarize(lines[1:4])]
    assert [{name: line[name] for name in expected[0]} for line in lines[4:]] == json.loads(json.dumps(expected))


@pytest.mark.slow
def test_every_token_is_counted_once(folder, lines):
    model = load(folder / "model")
    turns = {(line["questions"][0], line["turn"]): line for line in lines if line["kind"] == "turn"}
    assert turns.keys() == {(0, 0), (0, 1), (1, 0)}
    for index, question in enumerate(QUESTIONS):
        messages = []
        for turn, text in enumerate(question["turns"]):
            messages.append({"role": "user", "content": text})
            ids = model.tokenizer.apply_chat_template(messages)
            padded = np.asarray([ids + [0] * (64 - len(ids))], np.int32)
            options = {"prompt_length": len(ids), "max_new_tokens": 12, "stop_tokens": model.tokenizer.eos_token_ids}
            result = jaxspec.generate(model, None, padded, **options)
            count = int(result.length[0])
            messages.append({"role": "assistant", "content": model.tokenizer.decode(result.tokens[0, :count].tolist())})
            line = turns[index, turn]
            assert line["prompt_tokens"] == [len(ids)]
            for label, case in line["cases"].items():
                for repeat in case:
                    assert repeat["tokens"] == [count]
                    assert repeat["rounds"][0] + repeat["accepted"][0] == count
                    assert repeat["accepted"] == [sum(repeat["accepted_at"])]
                    assert repeat["drafted"] == [sum(repeat["drafted_at"])]
                    assert len(repeat["drafted_at"]) == (0 if label == "plain" else 2)
                    assert repeat["prefill_seconds"] > 0 and repeat["seconds"] > 0


@pytest.mark.slow
def test_a_finished_run_is_not_measured_again(folder, finished, tmp_path, monkeypatch):
    def measured(*_, **__):
        raise AssertionError("it was measured again")

    monkeypatch.setattr(Measurement, "turns", measured)
    before = (folder / "out" / "results.jsonl").read_text()
    (tmp_path / "r.jsonl").write_text(before)
    again = _bench(folder, "--json", tmp_path / "r.jsonl", "--resume", "--plots", tmp_path / "plots")
    assert again.exit_code == 0, again.stderr
    assert again.stdout == finished.stdout
    assert (tmp_path / "r.jsonl").read_text() == before


@pytest.mark.slow
def test_an_interrupted_run_goes_on(folder, finished, tmp_path, monkeypatch):
    asked, turns = [], Measurement.turns

    def counted(self, group, temperature):
        asked.append(group)
        return turns(self, group, temperature)

    monkeypatch.setattr(Measurement, "turns", counted)
    monkeypatch.setattr(Measurement, "forget_programs", lambda _: None)  # the same are needed again
    whole = (folder / "out" / "results.jsonl").read_text().splitlines()
    path = tmp_path / "r.jsonl"
    path.write_text("".join(f"{line}\n" for line in whole[:3]))  # the header, and one question of two turns
    again = _bench(folder, "--json", path, "--resume")
    assert again.exit_code == 0, again.stderr
    assert [group.task for group in asked] == ["qa"]
    after = path.read_text().splitlines()
    assert after[:3] == whole[:3]
    kinds = [json.loads(line)["kind"] for line in after]
    assert kinds == ["run", "turn", "turn", "turn", *["summary"] * 6]
    counts = lambda line: [one["tokens"] for one in json.loads(line)["cases"]["ngram, k=2"]]
    assert counts(after[3]) == counts(whole[3])


@pytest.mark.slow
def test_another_run_is_refused(folder, finished, tmp_path):
    before = (folder / "out" / "results.jsonl").read_text()
    for arguments, said in (
        (("--out", folder / "out"), "exists; pass --resume"),
        (("--out", folder / "out", "--resume", "-n", "13"), "--max-new-tokens was 12, now 13"),
        (("--out", folder / "out", "--resume", "--count", "1"), "questions was 2, now 1"),
    ):
        result = _bench(folder, *arguments)
        assert result.exit_code == 2 and said in result.stderr and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
    assert (folder / "out" / "results.jsonl").read_text() == before


@pytest.mark.slow
def test_without_matplotlib(folder, finished, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    without = lambda name, *more: None if name == "matplotlib" else find(name, *more)
    monkeypatch.setattr(importlib.util, "find_spec", without)
    alone = _bench(folder, "--plots", tmp_path / "plots")
    assert alone.exit_code == 2 and "plots need matplotlib" in alone.stderr
    (tmp_path / "results.jsonl").write_text((folder / "out" / "results.jsonl").read_text())
    rest = _bench(folder, "--out", tmp_path, "--resume")
    assert rest.exit_code == 0 and "no plots: they need matplotlib" in rest.stderr
    assert (tmp_path / "results.md").exists() and not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume",), "--resume continues a file"),
        (("-d", "none"), "plain decoding is always measured"),
        (("-d", "ngram"), "--drafter must differ from each other, got ngram, ngram"),
        (("-d", "auto"), "the drafters ngram, auto are ngram, ngram"),
        (("-k", "0"), "error: -k must be at least 1, got 0"),
        (("--batch", "0"), "batch must be at least 1, got 0"),
        (("-n", "0"), "--max-new-tokens must be at least 1, got 0"),
        (("--repeats", "0"), "repeats must be at least 1, got 0"),
        (("-t", "-1"), "temperature must be at least 0, got -1"),
        (("-t", "1", "-t", "1"), "--temperature must differ from each other"),
        (("--count", "0"), "--count must be at least 1, got 0"),
        (("-d", "smollm"), "unknown drafter 'smollm'"),
        (("--questions", "no-such-file.jsonl"), "no-such-file.jsonl"),
        (("-n", "600"), "no question fits the model's context"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, said):
    result = _bench(folder, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_built_in_questions_need_no_file(folder):
    words = ["bench", "-m", folder / "model", "-n", "512", "--quiet"]
    result = typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])
    # They were read: there is just no room for them.
    assert result.exit_code == 2 and "no question fits the model's context" in result.stderr


@pytest.mark.slow
def test_questions_that_are_answered_already(folder, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"turns": ["hi"], "answers": ["hello"]}\n')
    result = _bench(folder, "--questions", tmp_path / "q.jsonl")
    assert result.exit_code == 2 and "nothing to measure" in result.stderr


@pytest.mark.slow
def test_progress_is_on_stderr(folder, finished, tmp_path):
    (tmp_path / "r.jsonl").write_text((folder / "out" / "results.jsonl").read_text())
    words = ["bench", "-m", folder / "model", "--questions", folder / "questions.jsonl", *OPTIONS[:-1]]
    words += ["--json", tmp_path / "r.jsonl", "--resume"]
    result = typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])
    assert result.stdout == finished.stdout and "2/2" in result.stderr
