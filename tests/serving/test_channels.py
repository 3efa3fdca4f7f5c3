"""A text of channels is divided into thinking, content and calls, however it is cut into pieces."""

import pytest

from jaxspec.serving.channels import ChannelReader
from tests._fixtures.deltas import in_pieces, parts

THINKS = "<|channel|>analysis<|message|>so\n<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
CASES = [
    (THINKS + "<|channel|>final<|message|>yes <b>\n", ("so\n", "yes <b>\n", [])),
    (THINKS + CALL, ("so\n", "", [("f", '{"a": 1}')])),
    (THINKS + CALL + "<|call|>", ("so\n", "", [("f", '{"a": 1}')])),
    (THINKS + " to=functions.f<|channel|>commentary json<|message|>{}", ("so\n", "", [("f", "{}")])),
    (THINKS + CALL.replace('{"a": 1}', ""), ("so\n", "", [("f", "{}")])),
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL + "<|end|><|start|>assistant" + CALL,
        ("", "I look.", [("f", '{"a": 1}'), ("f", '{"a": 1}')]),
    ),
    ("<|channel|>commentary to=functions.h <|constrain|>json<|message|>{}", ("", "{}", [])),
    ("<|channel|>analysis<|message|>cut <|en", ("cut <|en", "", [])),
    ("<|channel|>final", ("", "", [])),
    ("<|channel|>" + 600 * "a", ("", "<|channel|>" + 600 * "a", [])),  # a mark that opens no header
    (80 * "<|start|>", ("", 24 * "<|start|>", [])),
    ("t", ("", "t", [])),
    ("the sea", ("", "the sea", [])),
    ("", ("", "", [])),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_texts_have_their_parts(text, expected):
    whole = ChannelReader({"f"}).push(text, last=True)
    assert parts(whole) == expected
    for one in whole:
        assert one.kind in ("name", "arguments") or text[one.place :].startswith(one.text)
    for size in range(1, 9):
        assert in_pieces(ChannelReader({"f"}), text, range(size, len(text), size)) == whole, size


def test_thinking_has_an_end_and_a_place():
    reader = ChannelReader(())
    reader.push("<|channel|>analysis<|message|>so")
    assert reader.thinks and reader.thought is None
    reader.push("<|end|>")
    assert not reader.thinks and reader.thought == len("<|channel|>analysis<|message|>so<|end|>")


def test_calls_beyond_the_allowed_number_are_dropped():
    text = CALL + "<|end|><|start|>assistant" + CALL
    assert parts(ChannelReader({"f"}, most_calls=1).push(text, last=True))[2] == [("f", '{"a": 1}')]
