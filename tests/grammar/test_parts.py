"""Grammars of parts: the table's expression and the host's grammar take the same texts."""

import functools
import re

import pytest

from jaxspec.grammar import Grammar
from jaxspec.grammar.automaton import over_bytes
from jaxspec.grammar.texts import named_tokens, token_texts
from tests._fixtures import scripted
from tests._fixtures.grammars import follower, takes

NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CALL = ['<call>\n{"name": "f", "arguments": ', {"schema": NUMBER}, "}</call>"]
CASES = [
    (
        CALL,
        ['<call>\n{"name": "f", "arguments": {"x":12}}</call>'],
        ['<call>\n{"name": "f", "arguments": {}}</call>', ""],
    ),
    (["a", {"any": ["b", ["c", {"regex": "[0-9]{2}"}]]}], ["ab", "ac12"], ["a", "ac1", "ab12", "b"]),
    ([{"repeat": {"any": ["ä\\", "[b"]}, "between": "; "}], ["ä\\", "[b; ä\\; [b"], ["", "[b;", "ä\\[b"]),
    (["(", {"schema": {"type": "object", "properties": {}}}, ")"], ["({})"], ["()", "({ })"]),
    ([{"any": ["", "x"]}, "y"], ["y", "xy"], ["x", "xxy"]),
    (["<", {"regex": "[a-z]*"}, "", ["end>"]], ["<end>", "<aend>"], ["<>", "<a>", "<end>>"]),
    ([["<a>", {"regex": "([^<]|<b>)*"}], "</a>", "x"], ["<a></a>x", "<a><b>c</a>x"], ["<a>", "<a></a>", "<a></a>xx"]),
    # Without a schema, an expression may hold what comes after it.
    ([{"regex": "a*"}, {"regex": "(a|b)c?"}, ", "], ["aaa, ", "bc, "], [", ", "aab"]),
    ([{"regex": "[^<]*"}, "\n"], ["\n", "a\nb\n"], ["a", "<\n"]),
    ([{"repeat": {"any": ["call", {"regex": "a*"}]}}, {"regex": "a|b"}], ["callaa", "acallb"], ["call", "aac"]),
]


def matches(automaton, text):
    state = automaton.start
    for byte in text.encode():
        state = automaton.following[state, automaton.classes[byte]]
    return bool(automaton.final[state])


@pytest.mark.parametrize(("parts", "good", "bad"), CASES)
def test_both_take_the_same_texts(parts, good, bad):
    grammar = Grammar.parts(*parts)
    table, host = over_bytes(grammar.pattern), follower(grammar)
    for text in (*good, *bad):
        assert matches(table, text) == takes(host, text) == (text in good), text


def test_a_schema_without_an_expression_is_followed_on_the_host():
    grammar = Grammar.parts(
        "<", {"schema": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 3}}}}, ">"
    )
    assert grammar.pattern is None
    assert takes(follower(grammar), "<3>") and not takes(follower(grammar), "<2>")


@pytest.mark.parametrize(
    "wrong", [5, None, {}, {"text": "a"}, {"any": []}, {"any": "a"}, {"repeat": "a", "x": 1}, "\ud800"]
)
def test_wrong_parts_are_named(wrong):
    with pytest.raises((TypeError, ValueError), match="part|between|any"):
        Grammar.parts("a", wrong)
    with pytest.raises(ValueError, match="needs a part"):
        Grammar.parts()
    with pytest.raises(ValueError, match="regex"):
        Grammar.parts({"regex": "a^b"})
    with pytest.raises(ValueError, match="schema"):
        Grammar.parts({"schema": {"enum": []}})


def test_parts_that_are_too_deep_are_named():
    part = functools.reduce(lambda inner, _: [inner], range(2000), "a")
    with pytest.raises(ValueError, match="inside of 101 others; nest at most 100"):
        Grammar.parts(part)
    with pytest.raises(ValueError, match="recursion"):
        Grammar("parts", "[" * 10_000 + "]" * 10_000)


def test_the_name_of_a_special_token_is_that_token():
    tokenizer = scripted.tokenizer()
    grammar = Grammar.parts("<tool_call>", {"regex": "[ab]"}, "</tool_call>")
    named = grammar.named_tokens(tokenizer)
    assert [tokenizer.decode([one], skip_special_tokens=False) for one in named] == ["<tool_call>", "</tool_call>"]
    table = grammar.table(tokenizer, 310)
    assert int(table.forced[table.start]) == named[0]  # and not its letters
    assert token_texts(tokenizer, 310, named)[named[0]] == b"<tool_call>"
    assert named_tokens(tokenizer, "<|end|>") == ()  # it ends the text


def test_a_pattern_is_escaped():
    assert re.fullmatch(Grammar.parts("a.b\n<(").pattern, "a.b\n<(")
