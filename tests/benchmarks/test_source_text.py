"""Questions after source text: of any length, with room for the answer."""

import dataclasses

import pytest

from jaxspec.training.prompts import Conversation
from tests._fixtures import text_models, tiny
from tests.benchmarks.source_text import ABOUT, after_source, source_questions

TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())


def length(question: Conversation) -> int:
    return len(TARGET.tokenizer.apply_chat_template([{"role": "user", "content": question.turns[0]}]))


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
