"""Rows that workers of Ray complete have the tokens of lone calls; these tests need no Ray."""

import pathlib

import numpy as np
import pytest

import jaxspec
from jaxspec.serving import ray, ray_files
from jaxspec.serving.ray import Completer, build_serve, complete_files, seed_of
from tests._fixtures import ray_engines, text_models


@pytest.fixture(scope="module")
def engine():
    with ray_engines.engine() as engine:
        yield engine


@pytest.fixture
def worker(engine):
    return lambda **given: Completer(lambda: engine, **{**ray_engines.OPTIONS, **given})


def column(*values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


def test_rows_are_answered_as_each_is_alone(engine, worker):
    """In any order, and next to any others."""
    batch = {
        "id": np.array([3, 4, 5]),
        "prompt": column("the sea", None, "one two"),
        "messages": column(None, np.array([{"role": "user", "content": "the sea", "name": None}]), None),
        "max_new_tokens": column(None, np.int64(3), None),
        "seed": column(None, None, 9),
        "source": column("a", "b", "c"),
    }
    found = worker(keep=("source",)).answers(batch)
    assert [row["seed"] for row in found] == [seed_of(3), seed_of(4), 9]
    assert [len(row["token_ids"]) for row in found] == [8, 3, 8]
    again = worker(keep=("source",)).answers({name: values[::-1] for name, values in batch.items()})
    assert again[::-1] == found
    lone = engine.submit("one two", seed=9, **ray_engines.OPTIONS).result()
    assert found[2]["token_ids"] == list(lone.token_ids) and found[2]["text"] == lone.text


@pytest.mark.slow
def test_rows_have_the_tokens_of_lone_calls(worker):
    rows = {"id": ["a", "b"], "prompt": ["the sea", "hello"], "temperature": [0.9, 0.0]}
    rows |= {"logit_bias": [None, [(5, 1.0)]], "alternatives": [0, 2]}
    found = worker().answers(rows)
    assert found[0]["token_ids"] == ray_engines.alone("the sea", seed_of("a"))
    assert found[1]["token_ids"] == ray_engines.alone("hello", 0, temperature=0, logit_bias={5: 1.0})
    assert found[1]["alternatives"].startswith("[[{") and '"token_id"' in found[1]["alternatives"]


def test_seeds_depend_on_the_text_of_an_id_alone(worker):
    assert len({seed_of(one) for one in range(1000)}) == 1000 and seed_of("7") == seed_of(7) != seed_of(7, 1)
    assert all(0 <= seed_of(one) < 2**32 for one in ("", "\ud800", -1))
    row = {"id": ["a"], "prompt": ["the sea"]}
    first, second = (worker(seed=seed).answers(row)[0] for seed in (0, 1))
    assert first["seed"] == seed_of("a") and second["seed"] == seed_of("a", 1)


def test_bad_rows_are_errors_and_end_no_others(worker):
    lines = [
        '{"prompt": "the sea", "max_new_tokens": 3, "seed": null}',
        "[1]",
        "oops",
        '{"prompt": "a", "custom_id": 1}',
    ]
    lines += [
        '{"prompt": "a", "\\udfff": 1}',
        '{"prompt": "a", "temperature": -1}',
        "{}",
        '{"prompt": "a", "seed": "b"}',
    ]
    found = worker().answers({"id": range(8), "line": lines, "place": range(8)})
    words = (
        "must be a JSON object",
        "line 3 is no JSON",
        "complete_file",
        "udfff",
        "temperature",
        "a prompt or messages",
        "seed",
    )
    assert len(found[0]["token_ids"]) == 3 and found[0]["seed"] == seed_of(0)
    for row, word in zip(found[1:], words, strict=True):
        assert word in row["error"] and set(row) == {"seed", "error"} and row["error"].encode()


def test_rows_of_tables_are_plain():
    """Maps come from Arrow as pairs, and fields that are null in one message are left out."""

    class Table:
        def to_pylist(self):
            messages = [{"role": "user", "content": "a", "tool_calls": None}]
            return [{"id": 1, "messages": messages, "logit_bias": [(5, 1.0)], "stop": None}]

    (row,) = ray._rows(Table())
    assert row["messages"] == [{"role": "user", "content": "a"}] and row["logit_bias"] == {5: 1.0}


def test_wrong_calls_are_named(engine, worker, tmp_path, monkeypatch):
    row = {"id": ["a"], "prompt": ["b"]}
    for given, batch, words in (
        ({"keep": ("c",)}, row, "a batch needs the columns c, got id, prompt"),
        ({"id_column": "c"}, row, "a batch needs the columns c"),
        ({}, {**row, "id": [None]}, "each row needs an id in the column id"),
        ({"seed": -1}, row, "seed"),
        ({"keep": ("error",)}, row, "must not be columns of answers, got error"),
        ({"prompt_alternatives": 1}, row, "prompt_alternatives"),
    ):
        with pytest.raises(ValueError, match=words):
            worker(**given).answers(batch)
    for source, words in (
        (3, "engine must be a model's name or a function, got 3"),
        (lambda: 3, "the result of engine"),
    ):
        with pytest.raises(TypeError, match=words):
            Completer(source)
    with pytest.raises(ValueError, match="engine_options are for a model's name, got slots; pass them in the function"):
        worker(engine_options={"slots": 4})
    with pytest.raises(TypeError, match="keep must be a list of names of columns, got 'c'"):
        worker(keep="c")
    monkeypatch.setattr(ray.importlib, "import_module", lambda name: __import__("no_such_module"))
    for call in (lambda: complete_files("m", "a.jsonl", str(tmp_path)), lambda: build_serve("m", model="m")):
        with pytest.raises(ImportError, match=r"this needs no_such_module.*jaxspec-decode\[ray"):
            call()


def test_formats_go_by_the_suffix():
    names = {"a.json": "jsonl", "a.ndjson.zst": "jsonl", "a/b.parquet": "parquet", "a.jsonl.gz": "jsonl"}
    assert {name: ray_files.format_of([name]) for name in names} == names
    for prompts in (["folder"], [], ["parquet"]):
        with pytest.raises(ValueError, match="pass prompts_format"):
            ray_files.format_of(prompts)


def test_paths_are_those_of_other_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = [ray_files.absolute(path) for path in ("a/../b", pathlib.Path("c"), "gs://bucket/a")]
    assert found == [str(tmp_path / "b"), str(tmp_path / "c"), "gs://bucket/a"]


def test_each_line_has_an_id_that_is_a_text():
    lines = {
        '{"id": "a"}': "a",
        '{"id": 7}': "7",
        "{}": "-",
        "[1]": "-",
        "oops": "-",
        '{"id": [1]}': "-",
        "[" * 9999: "-",
    }
    assert {line: ray_files.id_of(line, "-") for line in lines} == lines
    assert ray_files.id_of(r'{"id": "\ud800"}', "-").encode() == rb"\ud800"


def test_a_copy_serves_its_engine(monkeypatch):
    """And says so when the engine cannot any more; slots that Ray does not know of would stay empty."""
    monkeypatch.setattr(ray, "warm", lambda engine: None)
    own = jaxspec.Engine(text_models.history_models()[0], None, slots=1, capacity=32)
    copy = ray._Copy(lambda: own, {"slots": 1}, {}, {"model": "small"})
    copy.check_health()
    assert {"/live", "/v1/completions"} <= {route.path for route in copy.__serve_build_asgi_app__().routes}
    with pytest.raises(ValueError, match="slots must be 1, those of the engine, got 3; pass it to build_serve"):
        ray._Copy(lambda: own, {"slots": 3}, {}, {"model": "small"})
    own.close()
    with pytest.raises(RuntimeError, match="the engine has failed"):
        copy.check_health()
