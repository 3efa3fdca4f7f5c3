"""A text is divided into thinking, content and calls, however it is cut into pieces."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from jaxspec.serving.families import family_of, tags_of
from jaxspec.serving.reader import Reader, merged

TAGS = tags_of("</think>")
FAMILIES = {
    "Hermes": family_of("tools <tool_call>"),
    "Llama3": family_of('<|start_header_id|> "parameters"'),
    "Mistral": family_of("[TOOL_CALLS]"),
    "Mistral, with [ARGS]": family_of("[TOOL_CALLS] [ARGS]"),
    "Qwen3-Coder": family_of("<tool_call> <function="),
}
SCHEMAS = {"f": {"properties": {"text": {"type": "string"}, "kind": {"enum": ["1"]}}}, "g": {}}
NESTED = '{"x": "a\\"}b", "y":[1,{"z":"]"}]}'
# The family, the text, and its parts: thinking, content, and calls with their arguments.
CASES = [
    ("Hermes", "the sea \n", ("", "the sea \n", [])),
    ("Hermes", "", ("", "", [])),
    ("Hermes", "<think>\nso\n</think>\n\nyes\n", ("so", "yes\n", [])),
    ("Hermes", " <think>so", ("so", "", [])),
    ("Hermes", "<thin", ("", "<thin", [])),
    ("Hermes", "a <think>b</think>", ("", "a <think>b</think>", [])),
    (
        "Hermes",
        f'<think>a</think>\nSee.\n<tool_call>\n{{"name": "f", "arguments": {NESTED}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"q":1}, "name": "g"}\n</tool_call>\n',
        ("a", "See.", [("f", NESTED), ("g", '{"q":1}')]),
    ),
    ("Hermes", '<tool_call>{"name": "f"}</tool_call> then', ("", "then", [("f", "{}")])),
    ("Hermes", '<tool_call>{"name": "f", "arguments": null}', ("", "", [("f", "{}")])),
    ("Hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', ("", "", [("f", '{"a": 1}')])),
    ("Hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ("", "", [("f", '{"a": 1')])),
    ("Hermes", "no <tool_call> json", ("", "no <tool_call> json", [])),
    ("Hermes", '<tool_call>{"na', ("", '<tool_call>{"na', [])),
    ("Hermes", '<tool_call>{"name": 3}</tool_call>', ("", '<tool_call>{"name": 3}</tool_call>', [])),
    ("Hermes", '<tool_call>{"name": "h"}</tool_call>', ("", '<tool_call>{"name": "h"}</tool_call>', [])),
    ("Hermes", '<tool_call>{"name": "f"', ("", '<tool_call>{"name": "f"', [])),
    (
        "Hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}',
        ("", ': {"b": 2}}', [("f", '{"a": 1}')]),
    ),
    (
        "Hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}',
        ("", "", [("f", '{"a": "\\ud800"}')]),
    ),
    ("Hermes", '<tool_call>{"id": NaN, "name": "f"}', ("", '<tool_call>{"id": NaN, "name": "f"}', [])),
    ("Hermes", '<tool_call>{"x": 3}</tool_call>', ("", '<tool_call>{"x": 3}</tool_call>', [])),
    (
        "Llama3",
        ' {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        ("", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    ("Llama3", '<|python_tag|>{"type": "function", "function": "f", "parameters": {}}', ("", "", [("f", "{}")])),
    ("Llama3", '{"answer": 3}', ("", '{"answer": 3}', [])),
    ("Llama3", '{"name": "Alice", "age": 30}', ("", '{"name": "Alice", "age": 30}', [])),
    ("Llama3", '{"name": "f", "age": 30}', ("", '{"name": "f", "age": 30}', [])),
    ("Llama3", '{"name": "f", "parameters": 3}', ("", '{"name": "f", "parameters": 3}', [])),
    ("Llama3", '{"name": "f"}', ("", "", [("f", "{}")])),
    ("Llama3", 'is {"name": "f"}', ("", 'is {"name": "f"}', [])),
    (
        "Mistral",
        'hi [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        ("", "hi", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    ("Mistral", '[TOOL_CALLS][{"name": "h"}]', ("", '[TOOL_CALLS][{"name": "h"}]', [])),
    ("Mistral", '[TOOL_CALLS][{"arguments": {"a": [1]}, "name": "f"}]', ("", "", [("f", '{"a": [1]}')])),
    ("Mistral", "[TOOL_CALLS][]", ("", "[TOOL_CALLS][]", [])),
    (
        "Mistral, with [ARGS]",
        '[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}',
        ("", "", [("f", '{"a": "}"}'), ("g", "{}")]),
    ),
    ("Mistral, with [ARGS]", "[TOOL_CALLS]h[ARGS]{}", ("", "[TOOL_CALLS]h[ARGS]{}", [])),
    (
        "Qwen3-Coder",
        "ok\n<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=text>\n5\n</parameter>\n"
        "<parameter=kind>\n1\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call>",
        ("", "ok", [("f", '{"n": 5, "text": "5", "kind": "1", "flag": true}')]),
    ),
    ("Qwen3-Coder", "<tool_call><function=f></function></tool_call>", ("", "", [("f", "{}")])),
    ("Qwen3-Coder", "<tool_call><function=h>", ("", "<tool_call><function=h>", [])),
    (
        "Qwen3-Coder",
        '<tool_call><function=f><parameter=a>"\\ud800"</parameter><parameter=b>NaN</parameter>'
        "<parameter=c>[1e999]</parameter></function></tool_call>",
        ("", "", [("f", '{"a": "\\ud800", "b": "NaN", "c": "[1e999]"}')]),
    ),
    ("Qwen3-Coder", "<tool_call>what", ("", "<tool_call>what", [])),
]


def reader(family, **options):
    return Reader(TAGS, FAMILIES[family], schemas=SCHEMAS, **options)


def parts(deltas):
    """The thinking, the content and the calls of deltas."""
    texts, calls = {"reasoning": "", "content": ""}, []
    for one in deltas:
        if one.kind == "name":
            calls.append((one.text, ""))
        elif one.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + one.text)
        else:
            texts[one.kind] += one.text
    return texts["reasoning"], texts["content"], calls


def in_pieces(made, text, cuts):
    ends = [*cuts, len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return merged([one for piece in pieces for one in made.push(piece)] + made.push("", last=True))


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_texts_have_their_parts(family, text, expected):
    """As a whole, and in pieces of any size, which come to the same deltas."""
    whole = reader(family).push(text, last=True)
    assert parts(whole) == expected
    for one in whole:  # content and thinking are the model's own text
        assert one.kind in ("name", "arguments") or text[one.place :].startswith(one.text)
    for size in range(1, 9):
        assert in_pieces(reader(family), text, range(size, len(text), size)) == whole, size


def test_a_prompt_may_have_opened_the_thinking():
    made = reader("Hermes", opened=True)
    assert made.thinks and made.thought is None
    assert parts(made.push("so\n</think>\n\nyes")) == ("so", "yes", [])
    assert made.thought == len("so\n</think>") and not made.thinks


def test_text_is_held_back_only_while_it_may_be_a_mark():
    made = reader("Hermes")
    assert parts(made.push("the sea <tool")) == ("", "the sea", [])
    assert parts(made.push("s and")) == ("", " <tools and", [])


def test_arguments_come_while_they_are_written():
    made = reader("Hermes")
    assert made.push('<tool_call>{"name": "f", "argum') == []  # until it is certainly a call
    assert made.push('ents": {"a": [1') == [("name", "f", 0), ("arguments", '{"a": [1', 0)]
    assert made.push(", 2]}}") == [("arguments", ", 2]}", 0)]


def test_calls_beyond_the_allowed_number_are_dropped():
    text = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call> so'
    assert parts(reader("Hermes", most_calls=1).push(text, last=True)) == ("", "so", [("f", "{}")])


_PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": 1}}', "\n", " ", "x"]
_PIECES += ["[TOOL_CALLS]", "[", "]", "f[ARGS]{}", ",", "<function=f>", "<parameter=a>", "</parameter>", "</function>"]
_PIECES += ['{"name"', ":", '"f"', "}", ";", "<|python_tag|>", "\\", '"', "<th", "é"]


@pytest.mark.slow
@settings(max_examples=3000, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(sorted(FAMILIES)), st.lists(st.sampled_from(_PIECES), max_size=14), st.randoms())
def test_any_text_in_any_pieces_has_one_reading(family, pieces, random):
    text = "".join(pieces)
    whole = reader(family).push(text, last=True)
    cuts = sorted(random.sample(range(len(text) + 1), min(len(text), random.randrange(8))))
    assert in_pieces(reader(family), text, cuts) == whole
    reasoning, content, calls = parts(whole)
    assert len(reasoning) + len(content) + sum(map(len, dict(calls))) <= len(text)
    for name, arguments in calls:
        assert name and (arguments == "" or arguments[0] == "{")
    if not calls and not text.lstrip().startswith("<think>"):
        assert content == text


def test_whole_calls_have_arguments_that_are_json():
    for family, text, (_, _, calls) in CASES:
        for _, arguments in calls:
            if arguments.endswith("}"):
                assert isinstance(json.loads(arguments), dict), (family, text)
