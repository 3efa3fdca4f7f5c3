"""Another call for the same files goes on from the first one and loses no row; one for others is refused."""

import dataclasses
import functools
import hashlib
import importlib.util
import types

import numpy as np
import pytest

from jaxspec.serving import ray, ray_runs
from jaxspec.serving.ray import complete_files
from tests._fixtures import ray_engines

needs_arrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow, which comes with Ray; `bash .ci/run ray` has it"
)


def test_an_id_is_sure_if_its_file_is_complete():
    """A task that was run again after its commit leaves both files."""
    names = ["b-0.parquet", "a-0.parquet", "a-0.pending.parquet", "c-0.pending.parquet"]
    assert ray_runs.unsure(names) == ["a-0.parquet"] and ray_runs.unsure(names[:2]) == []


def test_answers_and_their_lists_belong_together():
    lists, written = ["a-0.parquet", "b-0.parquet", "c-0.pending.parquet"], ["a-0.jsonl", "c-0.jsonl", "d-0.jsonl"]
    assert ray_runs.not_listed(lists, written) == ["d-0.jsonl"] and ray_runs.not_listed([], written) == written
    assert ray_runs.unanswered(lists, written) == ["b-0.parquet"] and ray_runs.unanswered([], written) == []


@needs_arrow
def test_an_id_without_a_sure_answer_is_decoded_again(tmp_path):
    """Its file is one that Ray deletes, or is not there; answers that no list has would be doubled."""
    lists = ("a-0.parquet", "a-0.pending.parquet", "b-0.parquet", "c-0.pending.parquet", "d-0.parquet")
    for name in (*(f"answers.checkpoint/{one}" for one in lists), "answers/a-0.jsonl", "answers/b-0.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    answers = str(tmp_path / "answers")
    ray_runs.reconcile(answers)
    left = {path.name for path in (tmp_path / "answers.checkpoint").iterdir()}
    assert left == {*lists} - {"a-0.parquet", "d-0.parquet"}
    ray_runs.reconcile(str(tmp_path / "none"))
    (tmp_path / "answers" / "e-0.jsonl").touch()
    with pytest.raises(ValueError, match="does not list the rows of e-0.jsonl, which would be answered again"):
        ray_runs.reconcile(answers)


@needs_arrow
def test_prompts_are_listed_with_what_is_in_them(tmp_path):
    (tmp_path / "in").mkdir()
    for name, text in (("a.jsonl", "{}"), ("in/b.jsonl", "{}\n"), (".a.jsonl.swp", "{}"), ("_SUCCESS", "")):
        (tmp_path / name).write_text(text)
    digests = [hashlib.sha256(text).hexdigest() for text in (b"{}", b"{}\n")]
    expected = {str(tmp_path / "a.jsonl"): [2, digests[0]], str(tmp_path / "in/b.jsonl"): [3, digests[1]]}
    assert ray_runs.listed([str(tmp_path)]) == expected == ray_runs.listed([*expected])
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        ray_runs.listed([str(tmp_path / "c")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="without any file"):
        ray_runs.listed([str(tmp_path / "empty")])


@pytest.mark.parametrize("answers", ["/a/in", "/a/in/answers"])
def test_answers_are_not_among_the_prompts(answers):
    with pytest.raises(ValueError, match="answers must not be inside prompts"):
        ray_runs.check_place(answers, ["/b", "/a/in"])
    ray_runs.check_place("/a/in-answers", ["/b", "/a/in"])


def test_one_run_at_a_time_writes_a_folder(tmp_path):
    answers = str(tmp_path / "in" / "answers")
    second = pytest.raises(ValueError, match="another process is writing to .*answers; wait")
    with ray_runs.only_writer(answers), ray_runs.only_writer("s3://bucket/a"), second, ray_runs.only_writer(answers):
        pass
    with ray_runs.only_writer(answers):  # the lock has ended
        pass


def test_functions_are_named_and_objects_refused():
    partial = functools.partial(ray_engines.dying, "folder")
    assert ray_runs.said("engine", ray_engines.engine) == "tests._fixtures.ray_engines:engine"
    assert ray_runs.said("engine", partial) == ["tests._fixtures.ray_engines:dying", ["folder"], {}]
    assert ray_runs.said("x", {"a": np.arange(2), 5: {2, 1}, "b": None}) == {"a": [0, 1], "5": [1, 2], "b": None}
    for nameless in (object(), lambda: 3):
        with pytest.raises(TypeError, match=r"options\['grammar'\] must have a text"):
            ray_runs.said("options", {"grammar": nameless})


@needs_arrow
def test_rows_without_an_id_are_refused_at_the_start(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"id": [1, None], "key": [1, 2]}), path)
    ray_runs.check_ids([path, "notes.txt"], "parquet", "key")
    with pytest.raises(ValueError, match="needs an id in the column id, got 1 without one"):
        ray_runs.check_ids([path], "parquet", "id")
    with pytest.raises(ValueError, match="needs the column row, got id, key"):
        ray_runs.check_ids([path], "parquet", "row")
    with pytest.raises(ValueError, match="must not have the same id, got '[12]' twice in the field key"):
        ray_runs.check_ids([path, path], "parquet", "key")


@needs_arrow
def test_ids_of_lines_differ_as_texts(tmp_path):
    for name, rows in (("a", '{"id": 7}\n{"id": "8"}\n{}\n[]\n'), ("b", '{"id": "9"}\n'), ("c", '{"id": "7"}\n')):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    ray_runs.check_ids([str(tmp_path / f"{name}.jsonl") for name in "ab"], "jsonl", "id")
    with pytest.raises(ValueError, match="must not have the same id, got '7' twice in the field id"):
        ray_runs.check_ids([str(tmp_path / f"{name}.jsonl") for name in "abc"], "jsonl", "id")


@dataclasses.dataclass
class Begun(Exception):
    """Stands for the start of Ray."""


@pytest.fixture
def call(tmp_path, monkeypatch):
    def start(_):
        raise Begun

    monkeypatch.setattr(ray, "_needed", lambda *_: types.SimpleNamespace())
    monkeypatch.setattr(ray, "_check_processors", start)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    return functools.partial(complete_files, prompts=tmp_path / "rows.jsonl", answers=f"{tmp_path}/answers/")


@needs_arrow
def test_nothing_is_written_for_a_wrong_call(call, tmp_path):
    for given, words in (
        ({"keep": "source"}, "keep must be a list"),
        ({"max_tokens": 3}, "unexpected keyword argument 'max_tokens'"),
        ({"engine": 3}, "engine must be a model's name or a function"),
        ({"engine": len, "engine_options": {"slots": 3}}, "pass them in the function"),
        ({"processors": [object()]}, "processors must have a text"),
        ({"prompts": [str(tmp_path / "no.jsonl")]}, "does not exist"),
    ):
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match=words):
            call(**{"engine": "m", **given})
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@needs_arrow
def test_another_call_must_be_the_same(call, tmp_path):
    for _ in range(2):
        with pytest.raises(Begun):
            call(engine=ray_engines.engine)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "answers", "answers.lock", "answers.run.json"}
    for given in ({"engine": ray_engines.alone}, {"temperature": 0.5}):
        with pytest.raises(ValueError, match="was begun with other options"):
            call(**{"engine": ray_engines.engine, **given})
    with pytest.raises(ValueError, match=r"other options \(temperature was None, now 0.5\)"):
        call(engine=ray_engines.engine, temperature=0.5)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "b"}\n')  # of the same size
    with pytest.raises(ValueError, match="was begun with other options"):
        call(engine=ray_engines.engine)
