"""Questions of ours: by name, and about source text as long as one likes."""

import dataclasses

import pytest

from jaxspec.bench.named_questions import NAMES, read_questions
from jaxspec.bench.questions import task_of
from jaxspec.training.decontamination import turn_hash
from jaxspec.training.prompts import Conversation
from tests._fixtures import text_models, tiny
from tests.benchmarks.source_text import ABOUT, after_source, source_questions
from tests.training.test_prompts import EVALUATION

TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())


def length(question: Conversation) -> int:
    return len(TARGET.tokenizer.apply_chat_template([{"role": "user", "content": question.turns[0]}]))


def test_code_is_asked_about_and_is_no_evaluation_question():
    found = read_questions("code")
    assert len(found) == 12 and {task_of(one) for one in found} == {"code"}
    hashes = [turn_hash(turn) for one in found for turn in one.turns]
    assert len(set(hashes)) == len(found) and not {one[:16] for one in hashes} & set(EVALUATION)
    assert sum("```" in one.turns[0] for one in found) >= 8


def test_a_name_is_ours_and_all_else_a_file(tmp_path):
    assert len(read_questions("ours")) == 30
    (tmp_path / "own.jsonl").write_text('{"prompt": "hello"}\n')
    assert read_questions(tmp_path / "own.jsonl") == [Conversation(("hello",))]
    with pytest.raises(FileNotFoundError, match="no file codes; .* the name of ours: ours, code"):
        read_questions("codes")
    assert all(path.is_file() for path in NAMES.values())


def test_prompts_fill_the_context_but_for_the_answer():
    found = after_source(source_questions(), TARGET, 400, 40)
    assert [one.category for one in found] == ["source"] * len(ABOUT)
    for one, question in zip(found, ABOUT, strict=True):
        assert 340 <= length(one) <= 360 and one.turns[0].endswith(f"\n\n{question}")
    assert found[0].turns[0].startswith("# __init__.py\n")
    assert len({one.turns[0][:40] for one in found}) == len(ABOUT)
    assert found == after_source(source_questions(), TARGET, 400, 40)


def test_later_turns_are_left_out():
    asked = Conversation(("hello", "again"), category="writing")
    (found,) = after_source([asked], TARGET, 200, 40)
    assert len(found.turns) == 1 and found.category == "writing"


def test_a_context_that_does_not_fit_says_so():
    with pytest.raises(ValueError, match="context is 513 tokens, but the target takes 512"):
        after_source(source_questions(), TARGET, 513, 40)
    with pytest.raises(ValueError, match="no room for text"):
        after_source(source_questions(), TARGET, 100, 60)
