"""Questions asked turn by turn: every answer is counted, under its task, and follows those before it."""

import dataclasses

import numpy as np
import pytest

import jaxspec
from jaxspec.training.prompts import Conversation
from tests._fixtures import text_models, tiny
from tests.benchmarks.counting import ask

TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())
QUESTIONS = [
    Conversation(("the sea", "hello"), category="writing"),
    Conversation(("one two three",), category="qa"),
    Conversation(("hello world",), category="qa"),
]


@pytest.mark.slow
def test_every_answer_is_counted_under_its_task():
    found = ask(TARGET, jaxspec.NGramDrafter(k=2), QUESTIONS, policy=jaxspec.Greedy(), max_new_tokens=12)
    assert set(found) == {"multi-turn", "qa"}
    emitted = {}
    for index, question in enumerate(QUESTIONS):
        messages, total = [], 0
        for turn in question.turns:
            messages.append({"role": "user", "content": turn})
            ids = TARGET.tokenizer.apply_chat_template(messages)
            stops = TARGET.tokenizer.eos_token_ids
            padded = np.asarray([ids + [0] * (96 - len(ids))], np.int32)
            options = {"prompt_length": len(ids), "max_new_tokens": 12, "stop_tokens": stops}
            result = jaxspec.generate(TARGET, None, padded, **options)
            tokens = result.tokens[0, : int(result.length[0])].tolist()
            messages.append({"role": "assistant", "content": TARGET.tokenizer.decode(tokens)})
            total += len(tokens)
        emitted[index] = total
    assert found["multi-turn"].emitted == emitted[0]
    assert found["qa"].emitted == emitted[1] + emitted[2]
    for one in found.values():
        assert one.emitted == one.rounds + one.accepted and one.accepted <= one.drafted
        assert one.mean_acceptance_length == one.emitted / one.rounds
