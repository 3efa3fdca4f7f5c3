"""A rule whose texts never end is named; any other is left to the library."""

import pytest

from jaxspec.grammar import Grammar
from tests._fixtures.grammars import follower

ENDLESS = {
    "itself": ('start: "x" start', "start"),
    "each other": ('start: "x" | a\na: "y" b\nb: "z" (a | b)', "a"),
    "in a loop only": ('start: "x" a*\na: "y" a', "a"),
    "repeated": ('start: ("x" start)~1..2 | "y" start{2} | ("z" start)+', "start"),
    "nested": ('start: %lark {\n  start: "x" a\n  a: /y/ a\n}', "a"),
    "after a nested one": ('start: %lark {\n  start: "x"\n} | a\n!a: <[5]> a', "a"),
    "after JSON": ('start: %json {"type": "null"} "\\"" start -> name', "start"),
    "with attributes": ('%ignore / /\nstart: "x" a  // a\na[capture="a]", lazy]: b "y"\nb: "z" | a b b\n  | a a', ""),
    "with one that ends": ('start: "x" start?\nunused: unused', ""),
    "repeated never": ('start: "x" start~0 | ["y" start] | start{,2} | (start)* | "z" start~0..2', ""),
    "of texts": ('start: "start" /start/ "\\"" start | "a".."c" # start\n# c: c\n  | "x"', ""),
    "of nothing": ("start: a\na: ( | a)", ""),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_rule_that_never_ends_is_named(name):
    source, rule = ENDLESS[name]
    if not rule:
        Grammar.lark(source)
        return
    with pytest.raises(ValueError, match=f"the rule {rule} of the grammar never ends: .* add one that ends, such as"):
        Grammar.lark(source)


def test_one_token_has_a_text():
    """The library takes a single id and then cannot follow it; several are fine, and so is a text like one."""
    with pytest.raises(ValueError, match=r"names the token <\[5\]>, which cannot be followed; write its text instead"):
        Grammar.lark('start: "x" <[5]>')
    follower(Grammar.lark('start: <[5,6]> "<[5]>" /<[5]>/'))


def test_a_schema_in_a_grammar_ends_too():
    with pytest.raises(ValueError, match="the schema requires # within itself, so no text can end"):
        Grammar.lark('start: %json {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}')


@pytest.mark.parametrize("source", ["start: ((((", "start: \x00", "", "}", "a: b", "%json {", "start: %json {5}"])
def test_other_faults_are_those_that_the_library_finds(source):
    with pytest.raises(AssertionError):
        follower(Grammar.lark(source))


def test_a_deep_grammar_is_refused():
    with pytest.raises(ValueError, match="the grammar is nested too deeply"):
        Grammar.lark(f"start: {'(' * 5000}")
