"""A tokenizer's response template says how answers are read, with the parser of transformers."""

import json

import pytest

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.serving.fields import read_chat
from jaxspec.serving.template_reader import TemplateReader, special_tokens, usable_template
from jaxspec.serving.turn import Turn
from jaxspec.text.result import Span
from tests._fixtures import scripted, text_models

pytest.importorskip("transformers.utils.chat_parsing")

TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
NUMBER = {"properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": NUMBER}} for name in "fg"]
UNTYPED = [{"type": "function", "function": {"name": "f"}}]
TEXT = '<think>\nso\n</think>\n\nyes <call>{"name": "f", "arguments": {"a": 1}}</call><call>{"name": "g"}</call>'


def tokenizer(template=TEMPLATE, chat="{{ tools }}<|user|>{{ messages[0]['content'] }}<|assistant|>"):
    made = text_models.byte_level(chat_template=chat, marks=("<call>",))
    return Tokenizer(
        made._backend,
        special_tokens={"eos_token": text_models.END},
        eos_token_ids=made.eos_token_ids,
        chat_template=chat,
        response_template=template,
    )


def reading(reader, text, size):
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    found = [delta for piece in pieces for delta in reader.push(piece)] + reader.push("", last=True)
    texts = {kind: "".join(one.text for one in found if one.kind == kind) for kind in ("reasoning", "content")}
    return texts, [one.text for one in found if one.kind in ("name", "arguments")]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_text_in_pieces_of_any_size_has_its_parts(size):
    texts, calls = reading(TemplateReader(TEMPLATE, "<|assistant|>", TOOLS), TEXT, size)
    assert texts == {"reasoning": "so", "content": "yes "}
    assert calls == ["f", '{"a": 1}', "g", "{}"]
    opened = TemplateReader(TEMPLATE, "<|assistant|><think>", None)
    assert opened.thinks and reading(opened, "so</think>yes", size)[0] == {"reasoning": "so", "content": "yes"}


def test_what_is_no_call_is_content():
    texts, calls = reading(TemplateReader(TEMPLATE, "", None), "a<call>no json</call> b", 4)
    assert calls == [] and texts["content"] == "ano json</call> b"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', ["f", '{"a": "\\ud800"}']),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}', ["f", '{"a": "\\ud800"}']),
        ('{"name": "\\ud800"}', []),
        ('{"name": "f", "arguments": {"a": NaN}}', []),
        ('{"name": "h", "arguments": {}}', []),
    ],
)
def test_a_call_is_of_a_function_has_a_form_in_utf8_and_is_json(call, expected):
    text = f"<call>{call}</call>"
    texts, calls = reading(TemplateReader(TEMPLATE, "", UNTYPED), text, 100)
    assert calls == expected and (calls or texts["content"] == f"{call}</call>")
    assert reading(TemplateReader(TEMPLATE, "", None), text, 100)[1] == []  # of tool_choice="none"


def test_a_prompt_that_the_parser_refuses_leaves_all_as_content():
    prompt = "<|assistant|><call>no json</call>"
    texts, calls = reading(TemplateReader(TEMPLATE, prompt, None), "<think>so</think>", 4)
    assert calls == [] and texts == {"reasoning": "", "content": "<think>so</think>"}


def test_a_chat_is_read_by_the_template_of_its_tokenizer():
    """In the notation of any family, with the special tokens that it names."""
    made = tokenizer()
    assert usable_template(made) == TEMPLATE and usable_template(scripted.tokenizer()) is None
    asked = read_chat({"messages": scripted.asks("a"), "tools": TOOLS}, made)
    assert asked.options["shown_tokens"] == special_tokens(made)
    assert made.encode("<call>")[0] in asked.options["shown_tokens"]
    message = Turn(asked.conversation).message(TEXT)
    assert message["reasoning"] == "so" and message["content"] == "yes "
    assert [json.loads(one["function"]["arguments"]) for one in message["tool_calls"]] == [{"a": 1}, {}]


@pytest.mark.parametrize("size", [1, 100])
def test_the_thinking_ends_at_its_mark_in_whole_texts_too(size):
    asked = read_chat({"messages": scripted.asks("a")}, tokenizer())
    turn, text = Turn(asked.conversation), "<think>so it is</think>yes, the sea"
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        list(turn.push(piece, [Span(one, False, True) for one in piece]))
    assert turn.reasoning_tokens() == len("<think>so it is</think>")


def test_content_without_a_place_has_no_spans():
    """Those at its end, say, would be of other text."""
    asked = read_chat({"messages": scripted.asks("a")}, tokenizer())
    spans = [Span("<think>so</think>", False, True), Span("yes", True, True)]
    found = list(Turn(asked.conversation).push("<think>so</think>yes", spans, last=True))
    assert [delta.get("content") for delta, _ in found] == [None, "yes"] and all(not each for _, each in found)


def test_a_template_that_cannot_be_read_is_left_aside(caplog):
    made = tokenizer({"fields": 3})
    assert usable_template(made) is None and "response_template" in caplog.text
    assert read_chat({"messages": scripted.asks("a")}, made).conversation.template is None


def test_a_template_with_patterns_is_left_aside(caplog):
    """A file of a model could make the server search without end."""
    inner = {"open": "<call>", "close": "</call>", "content": "xml-inline", "content_args": {"tag_pattern": "(a+)+b"}}
    for fields in ({"content": {"content": "text", "close_pattern": "(a+)+b"}}, {"tool_calls": inner}):
        assert usable_template(tokenizer({**TEMPLATE, "fields": fields})) is None
    assert "close_pattern, and" in caplog.text and "tag_pattern, and" in caplog.text


def test_a_folder_has_it(tmp_path):
    made = tokenizer()
    made.save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).response_template == TEMPLATE
    assert made.digest != tokenizer(None).digest and made.ending_with([1]).response_template == TEMPLATE
