"""Whole texts: prompts without answers, and learning every token of them."""

import dataclasses
import json

import numpy as np
import pytest

from jaxspec.training.answers import AnswerOptions, Dialogue
from jaxspec.training.data import make_data
from jaxspec.training.dataset import Dataset
from jaxspec.training.prompts import read_prompts
from tests._fixtures import text_models, tiny

TOKENIZER = text_models.byte_level()
OPTIONS = AnswerOptions(max_new_tokens=6, batch=3, max_length=60)
TURNS = (["hello"], ["the sea is wide", "and deep?", "why"], ["x" * 95], ["one two three"])


@pytest.fixture(scope="module")
def target():
    return dataclasses.replace(tiny.transformer(3, vocab=TOKENIZER.vocab_size), tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in TURNS))
    return path


def test_prompts_alone(target, prompts, tmp_path):
    """Without answers, each conversation is its first prompt; learned from as a whole, but for its first token."""
    manifest = make_data(target, [prompts], tmp_path, dataclasses.replace(OPTIONS, max_new_tokens=0))
    texts = Dataset.open(tmp_path)
    expected = [TOKENIZER.apply_chat_template(Dialogue(0, c).messages()) for c in read_prompts([prompts])]
    expected = [prompt for prompt in expected if len(prompt) <= OPTIONS.max_length]
    assert 0 < len(expected) < len(TURNS)
    assert [texts.read(index)[0].tolist() for index in range(len(texts))] == expected
    assert manifest["left_out"] == {"longer than max_length": len(TURNS) - len(expected)}
    assert not texts.token_counts().any()
    whole = dataclasses.replace(texts, whole_texts=True)
    for index, prompt in enumerate(expected):
        assert whole.read(index)[1].tolist() == [False] + [True] * (len(prompt) - 1)
    np.testing.assert_array_equal(whole.token_counts(), np.bincount(sum(expected, []), minlength=texts.vocab_size))


@pytest.mark.slow
def test_a_draft_vocabulary_is_made_of_answers_where_there_are_any(target, prompts, tmp_path):
    make_data(target, [prompts], tmp_path, OPTIONS)
    answers = Dataset.open(tmp_path)
    whole = dataclasses.replace(answers, whole_texts=True)
    assert answers.token_counts().any()
    np.testing.assert_array_equal(whole.token_counts(), answers.token_counts())
    assert whole.read(0)[1].sum() == answers.lengths[0] - 1 > answers.read(0)[1].sum()
