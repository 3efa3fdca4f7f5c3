"""Questions by name: the built-in ones, or a file."""

import pytest

from jaxspec.bench.questions import NAMES, read_questions, task_of
from jaxspec.training.prompts import Conversation, turn_hash
from tests._fixtures.evaluation import EVALUATION


def test_code_is_asked_about_and_is_no_evaluation_question():
    found = read_questions("code")
    assert len(found) == 12 and {task_of(one) for one in found} == {"code"}
    hashes = [turn_hash(turn) for one in found for turn in one.turns]
    assert len(set(hashes)) == len(found) and not {one[:16] for one in hashes} & set(EVALUATION)
    assert sum("```" in one.turns[0] for one in found) >= 8


def test_a_name_is_built_in_and_all_else_a_file(tmp_path):
    assert len(read_questions("built-in")) == 30
    (tmp_path / "own.jsonl").write_text('{"prompt": "hello"}\n')
    assert read_questions(tmp_path / "own.jsonl") == [Conversation(("hello",))]
    with pytest.raises(FileNotFoundError, match="no file codes; .* a built-in name: built-in, code"):
        read_questions("codes")
    assert all(path.is_file() for path in NAMES.values())
