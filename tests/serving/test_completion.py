"""Files of prompts are completed in order, and interrupted runs go on."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import jaxspec
from jaxspec.serving import batch, complete_file, completion, rows
from jaxspec.serving.handle import Handle
from tests._fixtures import scripted, text_models

ROWS = [
    {"prompt": "the sea", "id": "first"},
    {"prompt": "hello world", "max_new_tokens": 2},
    {"prompt": ""},
    {"messages": [{"role": "user", "content": "a\u2028b"}]},
    {"prompt": "a", "messages": []},
    {"prompt": "one two three", "temperature": -1},
    {"prompt": "the sea", "timeout": 0.0},
]
OPTIONS = {"temperature": 0, "max_new_tokens": 5, "stop_tokens": ()}


@pytest.fixture(scope="module")
def engine():
    with jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=2, capacity=64) as engine:
        yield engine


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_text("\ufeff" + "\r\n".join([*lines, "not JSON", "[1]"]) + "\r\n", newline="")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_answers_are_in_order_and_bad_rows_are_errors(engine, source, tmp_path):
    out, seen = tmp_path / "answers.jsonl", []
    failed = complete_file(engine, source, out, progress=lambda *now: seen.append(now[:2]), **OPTIONS)
    answers = read(out)
    assert failed == 6 and [answer["index"] for answer in answers] == list(range(9))
    assert answers[0]["id"] == "first" and "id" not in answers[1]
    assert [len(answers[n]["token_ids"]) for n in (0, 1, 3)] == [5, 2, 5]
    for index, words in (
        (2, "empty"),
        (4, "a prompt or messages"),
        (5, "temperature"),
        (6, "time limit"),
        (7, "line 8"),
        (8, "line 9"),
    ):
        assert words in answers[index]["error"]
    assert seen == [(done, 9) for done in range(10)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "prompts.jsonl"]


def test_wrong_calls_are_named(engine, tmp_path):
    with pytest.raises(TypeError, match="engine of complete must be .*Engine, got 'ngram'"):
        jaxspec.complete("ngram", ["the sea"])
    for wrong in (None, np.array("the sea")):
        with pytest.raises(TypeError, match="prompts"):
            list(jaxspec.complete(engine, wrong))
    with pytest.raises(TypeError, match="engine of complete_file must be .*Engine, got None"):
        complete_file(None, tmp_path / "a", tmp_path / "b")


def test_a_strange_row_ends_no_other(engine, tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    rows = [r'{"prompt": "the", "id": "\ud800"}', deep, f'{{"prompt": "the", "id": {deep}}}']
    rows += [r'{"prompt": "the", "\udfff": 1}', '{"prompt": "the sea"}']
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    assert complete_file(engine, tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl", **OPTIONS) == 3
    found = read(tmp_path / "answers.jsonl")
    assert found[0]["id"] == "\ud800" and [len(found[place]["token_ids"]) for place in (0, 4)] == [5, 5]
    assert all("recursion" in found[place]["error"] for place in (1, 2)) and "\udfff" in found[3]["error"]


def test_an_interrupted_run_goes_on(engine, source, tmp_path, monkeypatch):
    out, part = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.part"
    complete_file(engine, source, out, **OPTIONS)
    expected = out.read_bytes()
    out.unlink()

    def stop(done, rows, result):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete_file(engine, source, out, progress=stop, **OPTIONS)
    whole = part.read_bytes()
    for damaged in (whole.replace(b'"index": 1', b'"index": 7'), whole[:-9] + b"\xff" + whole[-8:], whole + whole[-9:]):
        part.write_bytes(damaged)
        with pytest.raises(ValueError, match="part is damaged in line [34]; delete that line and those after"):
            complete_file(engine, source, out, **OPTIONS)
    head, *sealed = whole.splitlines(keepends=True)
    part.write_bytes(head + b"".join(line[9:] for line in sealed))  # as earlier versions wrote it
    with pytest.raises(KeyboardInterrupt):
        complete_file(engine, source, out, progress=lambda *_: stop(2, 0, None), **OPTIONS)
    assert part.read_bytes() == whole
    part.write_bytes(whole + b'{"index": 2, "te')  # cut off while it was written
    with pytest.raises(ValueError, match="other prompts or options"):
        complete_file(engine, source, out, temperature=0)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="begun with another model"):
        patch.setattr(completion, "model_digest", lambda *_, **__: "other")
        complete_file(engine, source, out, **OPTIONS)
    counts = []
    complete_file(engine, source, out, progress=lambda done, *_: counts.append(done), **OPTIONS)
    assert out.read_bytes() == expected and counts == list(range(2, 10))


@pytest.mark.slow
def test_alternatives_of_a_line_are_in_its_answer(engine, tmp_path):
    rows = {"prompt": "the sea", "alternatives": 2}, {"prompt": "the sea", "prompt_alternatives": 1}
    (tmp_path / "prompts").write_text("\n".join(map(json.dumps, rows)))
    assert complete_file(engine, tmp_path / "prompts", tmp_path / "answers", **OPTIONS) == 1
    first, second = read(tmp_path / "answers")
    assert [one[0]["token_id"] for one in first["alternatives"]] == first["token_ids"]
    assert [len(one) for one in first["alternatives"]] == [2] * 5 and "prompt_alternatives" in second["error"]


def test_biases_of_a_line_are_of_token_ids():
    line = '{"prompt": "a", "id": 3, "logit_bias": {"5": 1, "x": 2}}'
    assert rows.read_row(line, 0) == {"prompt": "a", "logit_bias": {5: 1, "x": 2}}


def test_prompts_are_not_replaced_by_their_answers(engine, source, tmp_path):
    before = source.read_bytes()
    for target in (source, tmp_path):
        with pytest.raises(ValueError, match="answers must be a separate file, got"):
            complete_file(engine, source, target, **OPTIONS)
    beginning = source.rename(tmp_path / "answers.part")
    with pytest.raises(ValueError, match="answers must be a separate file, got"):
        complete_file(engine, beginning, tmp_path / "answers", **OPTIONS)
    beginning.rename(source)
    with pytest.raises(ValueError, match="prompt_alternatives are no part of a result"):
        complete_file(engine, source, tmp_path / "answers", prompt_alternatives=2)
    with pytest.raises(ValueError, match="prompt_alternatives are no part of a result"):
        list(jaxspec.complete(engine, ["a"], prompt_alternatives=2))
    with pytest.raises(TypeError, match="progress of complete_file must be callable or None, got 3"):
        complete_file(engine, source, tmp_path / "answers", progress=3, **OPTIONS)
    assert source.read_bytes() == before and list(tmp_path.iterdir()) == [source]


def test_prompts_are_read_as_results_are_taken(engine):
    taken = []

    def endless():
        while True:
            taken.append(None)
            yield "the sea"

    results = jaxspec.complete(engine, endless(), **OPTIONS)
    assert len(next(results).token_ids) == 5
    results.close()
    assert len(taken) == 4 * engine.slots
    with pytest.raises(TypeError, match="pass \\[prompt\\]"):
        next(jaxspec.complete(engine, "the sea"))


BATCH = [
    {"url": "/v1/completions", "body": {"model": "m", "prompt": ["the sea", "a"], "max_tokens": 4, "temperature": 0}},
    {"url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "n": 2}},
    {"url": "/v1/completions", "body": {"prompt": "the sea", "max_tokens": 2, "logprobs": 1, "seed": 3}},
    {"url": "/v1/completions", "body": {"prompt": "the sea", "temperature": -1}},
    {"url": "/v1/completions", "body": {"prompt": "the sea", "stream": True}},
    {"url": "/v1/embeddings", "body": {"input": "the sea"}},
    {"url": "/v1/completions", "method": "GET", "body": {"prompt": "the sea"}},
    {"url": "/v1/completions"},
    {"url": "/v1/completions", "body": {"prompt": "the sea " * 60}},
    {"url": "/v1/completions", "body": {"prompt": "the sea", "max_tokens": 1, "logprobs": 1, "echo": True}},
    {"url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 1}},
]


@pytest.mark.slow
def test_requests_of_a_batch_have_answers_in_its_form(engine, tmp_path):
    rows = [{"custom_id": f"row {index}", "method": "POST"} | row for index, row in enumerate(BATCH)]
    source, out = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl"
    source.write_text("\n".join(map(json.dumps, [*rows, ROWS[0]])))
    assert complete_file(engine, source, out, **OPTIONS) == 6
    *answers, plain = read(out)
    assert [answer["custom_id"] for answer in answers] == [row["custom_id"] for row in rows]
    assert [set(answer) for answer in answers] == [{"id", "custom_id", "response", "error"}] * len(rows)
    statuses = [answer["response"]["status_code"] for answer in answers]
    assert statuses == [200, 200, 200, 400, 400, 404, 405, 400, 400, 200, 200] and len(plain["token_ids"]) == 5
    bodies = [answer["response"]["body"] for answer in answers]
    expected = list(jaxspec.complete(engine, ["the sea", "a"], temperature=0, max_new_tokens=4))
    assert [choice["text"] for choice in bodies[0]["choices"]] == [result.text for result in expected]
    assert bodies[0]["model"] == "m" and bodies[1]["object"] == "chat.completion" and len(bodies[1]["choices"]) == 2
    assert len(bodies[2]["choices"][0]["logprobs"]["tokens"]) == bodies[2]["usage"]["completion_tokens"]
    assert [body["error"]["param"] for body in bodies[3:9]] == ["temperature", "stream", "url", "method", None, None]
    echoed = bodies[9]["choices"][0]["logprobs"]["token_logprobs"]
    assert len(echoed) == bodies[9]["usage"]["total_tokens"] and echoed[0] is None and max(echoed[1:]) <= 0
    assert len(bodies[10]["prompt_logprobs"]) == bodies[10]["usage"]["prompt_tokens"]


def test_rows_of_a_batch_have_the_scores_of_their_prompt_and_the_width_of_the_logits(monkeypatch):
    """As requests of the server have; nothing is decoded here."""
    tokenizer, handle, submitted, made = scripted.tokenizer(), Handle(lambda: None), {}, {}
    target = SimpleNamespace(vocab_size=tokenizer.vocab_size + 8)

    class Held(jaxspec.Engine):
        open, decoder = True, SimpleNamespace(tokenizer=tokenizer, target=target)

        def __init__(self):
            pass

        def submit(self, ids, **options):
            submitted.update(options)
            return handle

    monkeypatch.setattr(batch, "Answers", lambda *_, **options: made.update(options))
    body = {"messages": scripted.asks("a"), "prompt_logprobs": 1, "thinking_token_budget": 3}
    batch.BatchRequest(Held(), {"custom_id": "a", "url": "/v1/chat/completions", "body": body}, {})
    handle.prompt_scores = scores = object()
    assert made["scores"](0) is scores
    [budget] = submitted["processors"]
    budget.check(1, target.vocab_size)


@pytest.mark.slow
def test_a_batch_is_completed_in_memory_too(engine):
    found = list(jaxspec.complete(engine, [{"custom_id": "a", **BATCH[0]}, "the sea"], **OPTIONS))
    assert found[0]["response"]["status_code"] == 200 and len(found[1].token_ids) == 5
    rows = iter([{"custom_id": "a", **BATCH[0]} for _ in range(100)])
    results = jaxspec.complete(engine, rows)
    next(results)
    results.close()  # which cancels the others
    assert len(list(rows)) >= 90 and engine.open
