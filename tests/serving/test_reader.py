"""A text is divided into thinking, content and calls, however it is cut into pieces."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from jaxspec.serving.families import family_of, tags_of
from jaxspec.serving.reader import Reader
from tests._fixtures.deltas import in_pieces, parts

TAGS = tags_of("</think>")
FAMILIES = {
    "Hermes": family_of("tools <tool_call>"),
    "Llama3": family_of('<|start_header_id|> "parameters"'),
    "Mistral": family_of("[TOOL_CALLS]"),
    "Mistral, with [ARGS]": family_of("[TOOL_CALLS] [ARGS]"),
    "Qwen3-Coder": family_of("<tool_call> <function="),
    "DeepSeek V3": family_of("<｜tool▁calls▁begin｜> ```json"),
    "DeepSeek V3.1": family_of("<｜tool▁calls▁begin｜>"),
    "DeepSeek V3.2": family_of("｜DSML｜ function_calls"),
    "Kimi K2": family_of("<|tool_calls_section_begin|>"),
    "GLM": family_of("<tool_call>{name} <arg_key>"),
    "MiniMax M2": family_of("<minimax:tool_call> <invoke name="),
    "Seed-OSS": family_of("<seed:tool_call> <function="),
    "Granite 3": family_of("<|start_of_role|> <|tool_call|>"),
    "Phi-4-mini": family_of("functools["),
    "LFM2": family_of("<|tool_list_start|>"),
    "Python": family_of("[func_name1(param1=value1)]"),
    "tool_code": family_of("```tool_code"),
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
    (
        "DeepSeek V3",
        "See.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        + NESTED
        + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        ("", "See.", [("f", NESTED), ("g", "{}")]),
    ),
    (
        "DeepSeek V3.1",
        '<think>so</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("so", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    (
        "DeepSeek V3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>h<｜tool▁sep｜>{}",
        ("", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>h<｜tool▁sep｜>{}", []),
    ),
    ("DeepSeek V3.1", "<｜tool▁calls▁begin｜>what", ("", "<｜tool▁calls▁begin｜>what", [])),
    (
        "DeepSeek V3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜> so',
        ("", "so", [("f", '{"a": 1}')]),
    ),
    (
        "DeepSeek V3.2",
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">5\n</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="text" string="false">[5]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        ("", "", [("f", '{"a": "5\\n", "text": [5]}'), ("g", "{}")]),
    ),
    (
        "Kimi K2",
        'See.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
        "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.g:2<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
        ("", "See.", [("f", '{"a": 1}'), ("g", "{}"), ("g", "{}")]),
    ),
    (
        "GLM",
        "\n<think>so</think>\nSee.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a > b</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        ("so", "See.", [("f", '{"text": "a > b", "n": [1, 2]}'), ("g", "{}")]),
    ),
    (
        "GLM",
        "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call> then",
        ("", "then", [("f", '{"n": 1}')]),
    ),
    ("GLM", "<tool_call>h</tool_call>", ("", "<tool_call>h</tool_call>", [])),
    (
        "MiniMax M2",
        'ok\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">a\nb</parameter>\n'
        '<parameter name="n">5</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        ("", "ok", [("f", '{"text": "a\\nb", "n": 5}'), ("g", "{}")]),
    ),
    (
        "Seed-OSS",
        "<seed:tool_call>\n<function=f>\n<parameter=n>5</parameter>\n</function>\n</seed:tool_call>",
        ("", "", [("f", '{"n": 5}')]),
    ),
    (
        "Granite 3",
        '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        ("", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    ("Phi-4-mini", 'functools[{"name": "f", "arguments": {"a": 1}}]', ("", "", [("f", '{"a": 1}')])),
    (
        "LFM2",
        '<|tool_call_start|>[f(text="a"), g()]<|tool_call_end|>See.',
        ("", "See.", [("f", '{"text": "a"}'), ("g", "{}")]),
    ),
    (
        "Python",
        "[f(text='it\\'s (a)', n=-1.5, deep={'x': [True, None]}, flag=true), g()]",
        ("", "", [("f", '{"text": "it\'s (a)", "n": -1.5, "deep": {"x": [true, null]}, "flag": true}'), ("g", "{}")]),
    ),
    ("Python", "<|python_start|>[g()]<|python_end|>", ("", "", [("g", "{}")])),
    ("Python", "[f(user-id=1, é='a')]", ("", "", [("f", '{"user-id": 1, "é": "a"}')])),
    ("Python", "[1] is a list", ("", "[1] is a list", [])),
    ("Python", "[h()]", ("", "[h()]", [])),
    ("Python", "[f(1)]", ("", "[f(1)]", [])),
    ("Python", "[f(x=g())]", ("", "[f(x=g())]", [])),
    ("Python", "I call [g()]", ("", "I call [g()]", [])),
    ("tool_code", "Look:\n```tool_code\nf(text='a')\ng()\n```\n", ("", "Look:", [("f", '{"text": "a"}'), ("g", "{}")])),
    ("tool_code", "```tool_code\nprint(1)\n```", ("", "```tool_code\nprint(1)\n```", [])),
]


def reader(family, **options):
    return Reader(TAGS, FAMILIES[family], schemas=SCHEMAS, **options)


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
_PIECES += [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "f<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
]
_PIECES += ["<minimax:tool_call>", '<invoke name="f">', "</invoke>", "</minimax:tool_call>", "<arg_key>", "</arg_key>"]
_PIECES += [
    "<arg_value>",
    "</arg_value>",
    "functools",
    "[f(",
    "x=",
    ")",
    "'",
    "```tool_code",
    "```",
    "<|tool_call|>",
    "g()",
]
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
