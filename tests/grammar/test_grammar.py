"""Which inputs are grammars, which schemas become tables, and which are rejected."""

import json
import re

import jsonschema
import pydantic
import pytest

from jaxspec.grammar import Grammar
from jaxspec.grammar.schema import pattern
from tests._fixtures.grammars import accepts


def one(**more):
    return {"type": "object", "properties": {"x": more}, "required": ["x"], "additionalProperties": False}


# With a text that it allows, and one that it does not.
COVERED = {
    "string": (one(type="string", maxLength=3), '{"x":"abc"}', '{"x":"abcd"}'),
    "integer": (one(type="integer"), '{"x":-12}', '{"x":1.5}'),
    "number": (one(type="number"), '{"x":1.5e+3}', '{"x":.5}'),
    "enum": (one(enum=["a.b", "c"]), '{"x":"a.b"}', '{"x":"axb"}'),
    "constant": (one(const=7), '{"x":7}', '{"x":8}'),
    "boolean": (one(type="boolean"), '{"x":true}', '{"x":1}'),
    "either": (one(anyOf=[{"type": "null"}, {"type": "integer"}]), '{"x":null}', '{"x":"a"}'),
    "list": (one(type="array", items={"type": "boolean"}, minItems=1, maxItems=2), '{"x":[true]}', '{"x":[]}'),
    "reference": ({"$defs": {"n": {"type": "integer"}}, **one(**{"$ref": "#/$defs/n"})}, '{"x":3}', '{"x":"3"}'),
    "title": (one(type="boolean", title="X", description="says nothing"), '{"x":false}', '{"x":null}'),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_schema_s_expression_holds_to_all_of_it(name):
    schema, good, bad = COVERED[name]
    found = pattern(schema)
    assert re.fullmatch(found, good) and not re.fullmatch(found, bad)
    jsonschema.validate(json.loads(good), schema)


@pytest.mark.parametrize("name", COVERED)
def test_the_table_and_the_host_have_one_language(name):
    """Neither of them allows white space."""
    schema, good, bad = COVERED[name]
    spaced = json.dumps(json.loads(good))
    assert spaced != good and not re.fullmatch(pattern(schema), spaced)
    for text, expected in ((good, True), (bad, False), (spaced, False)):
        assert accepts(schema, text) == expected, text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": ["number", "null"]},
        {"type": "integer"},
        {"type": ["integer", "null"]},
        {"type": "string"},
        {"type": "string", "maxLength": 3},
    ],
)
def test_numbers_and_letters_are_the_same_in_both(schema):
    texts = [
        "1e5",
        "1E5",
        "1e+5",
        "-0",
        "01",
        "1.",
        "-0.0e-1",
        "9" * 15,
        "-" + "9" * 15,
        "9" * 16,
        "9" * 16 + ".5",
        '"\\/"',
        '"\\u00e9"',
        '"\\u000a"',
        '"\\u0000"',
        '"\x7f"',
        '"\x85"',
        '"\\b"',
        '"日é"',
    ]
    found, answers = pattern(schema), set()
    for text in texts:
        by_host = accepts(schema, text)
        assert bool(re.fullmatch(found, text)) == by_host, text
        answers.add(by_host)
    assert answers == {True, False}


# Each with integers that it allows, and others that it does not.
INTEGERS = {
    "none": ({}, ["0", "-" + "9" * 15], ["1" + "0" * 15, "-1" + "0" * 15, "9" * 16]),
    "at least": ({"minimum": 0}, ["0", "9" * 15], ["-1", "9" * 16]),
    "above": ({"exclusiveMinimum": 0}, ["1", "9" * 15], ["0", "9" * 16]),
    "at most": ({"maximum": 5}, ["5", "-" + "9" * 15], ["6", "-" + "9" * 16]),
    "below": ({"exclusiveMaximum": 5}, ["4", "-" + "9" * 15], ["5", "-" + "9" * 16]),
    "more than all": ({"minimum": 10**17}, [str(10**17), str(10**30)], ["1"]),
    "less than all": ({"exclusiveMaximum": -(10**17)}, [str(-(10**17) - 1), str(-(10**30))], ["1"]),
    "a value": ({"enum": [10**18]}, [str(10**18)], ["1"]),
    "with others": ({"allOf": [{"minimum": 10**17}]}, [str(10**18)], ["1"]),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("place", ["itself", "list", "rest", "either", "definition"])
def test_an_integer_has_as_many_digits_as_it_says_or_fifteen(name, place):
    bounds, good, bad = INTEGERS[name]
    kind = {"type": "integer", **bounds}
    schema, around = {
        "itself": (kind, "{}"),
        "list": ({"type": "array", "items": kind}, "[{}]"),
        "rest": ({"type": "object", "additionalProperties": kind}, '{{"a":{}}}'),
        "either": ({"anyOf": [{"type": "null"}, kind]}, "{}"),
        "definition": ({"$defs": {"n": kind}, "type": "array", "prefixItems": [{"$ref": "#/$defs/n"}]}, "[{}]"),
    }[place]
    for texts, expected in ((good, True), (bad, False)):
        for text in texts:
            assert accepts(schema, around.format(text)) == expected, text


NOT = {
    "a bound next to a choice": {"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]},
    "a bound next to values": one(enum=["abc", "a"], maxLength=2),
    "a value next to values": one(enum=["a", "b"], const="b"),
    "values of another type": one(enum=["a", 1], type="integer"),
    "a bound next to a reference": {"$defs": {"n": {"type": "string"}}, **one(**{"$ref": "#/$defs/n", "maxLength": 2})},
    "bounds": one(type="integer", minimum=1),
    "pattern": one(type="string", pattern=".*"),
    "format": one(type="string", format="date"),
    "all of": one(allOf=[{"type": "integer"}]),
    "one of": one(oneOf=[{"type": "integer"}, {"type": "number"}]),
    "any object": one(type="object"),
    "other properties": {**one(type="integer"), "additionalProperties": {"type": "string"}},
    "anything": one(),
    "itself": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    "a reference to nothing": one(**{"$ref": "#/$defs/n"}),
    "quotes in a name": {"type": "object", "properties": {'a"b': {"type": "integer"}}, "required": ['a"b']},
    "quotes in a value": one(enum=['a"b']),
    "a list of anything": one(type="array"),
    "unique": one(type="array", items={"type": "integer"}, uniqueItems=True),
}


@pytest.mark.parametrize("name", NOT)
def test_other_schemas_have_no_expression(name):
    """The host follows them: an expression would pass over what it does not know."""
    assert pattern(NOT[name]) is None


class City(pydantic.BaseModel):
    name: str
    capital: bool


def test_a_schema_is_given_in_three_ways():
    expected = Grammar.json_schema(City.model_json_schema())
    assert Grammar.json_schema(City) == expected == Grammar.json_schema(json.dumps(City.model_json_schema()))
    assert re.fullmatch(expected.pattern, '{"name":"Rome","capital":true}')


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: Grammar.json_schema(7),
            TypeError,
            "schema must be a dictionary, JSON, or a class",
        ),
        (lambda: Grammar.json_schema("{"), ValueError, "schema must be JSON, got '{'"),
        (lambda: Grammar.json_schema(one(enum=[])), ValueError, "schema.properties.x.enum is empty"),
        (
            lambda: Grammar.json_schema(one(type="text")),
            ValueError,
            "schema.properties.x.type is 'text', expected",
        ),
        (lambda: Grammar.json_schema(one(minLength=3, maxLength=2)), ValueError, "minLength=3 above maxLength=2"),
        (
            lambda: Grammar.json_schema({"properties": {"x": False}, "required": ["x"]}),
            ValueError,
            "x is false",
        ),
        (lambda: Grammar.json_schema({"anyOf": []}), ValueError, "schema.anyOf is empty"),
        (lambda: Grammar.json_schema({"required": "a"}), ValueError, "schema.required must be a list, got 'a'"),
        (lambda: Grammar.json_schema({"properties": [1]}), ValueError, "schema.properties must be an object, got [1]"),
        (lambda: Grammar.json_schema({"$defs": [1]}), ValueError, "schema.$defs must be an object, got [1]"),
        (lambda: Grammar.json_schema(one(type=7)), ValueError, "schema.properties.x.type is 7, expected"),
        (
            lambda: Grammar.json_schema({"properties": {"x": {"type": [{}]}}}),
            ValueError,
            "schema.properties.x.type is {}, expected",
        ),
        (
            lambda: Grammar.json_schema({"additionalProperties": {"type": None}}),
            ValueError,
            "schema.additionalProperties.type is None, expected",
        ),
        (lambda: Grammar.json_schema(one(exclusiveMinimum="0")), ValueError, "x.exclusiveMinimum must be a number"),
        (lambda: Grammar.json_schema(one(minLength=-1)), ValueError, "x.minLength must be an integer of at least 0"),
        (lambda: Grammar.json_schema(one(minLength="a")), ValueError, "x.minLength must be an integer of at least 0"),
        (
            lambda: Grammar.json_schema({"anyOf": [{"minItems": 3, "maxItems": 1}]}),
            ValueError,
            "schema.anyOf[0] has minItems=3 above maxItems=1",
        ),
        (lambda: Grammar.json_schema(one(**{"$ref": "#"})), ValueError, "the schema requires # within itself"),
        (lambda: Grammar.regex("a^b"), ValueError, "has ^ inside it, but an answer matches it as a whole"),
        (lambda: Grammar.regex("(^a)"), ValueError, "has ^ inside it"),
        (lambda: Grammar.regex(r"a\b"), ValueError, r"has \b inside it"),
        (lambda: Grammar.regex("a)|(?:b"), ValueError, "has a closing parenthesis without an opening one"),
        (lambda: Grammar.regex("(?x) a # b"), ValueError, "has the flag x"),
        (lambda: Grammar.regex("^$"), ValueError, "regex is empty"),
        (lambda: Grammar.regex(""), ValueError, "regex is empty"),
        (lambda: Grammar.regex(7), TypeError, "regex must be a string, got int"),
        (lambda: Grammar.choices("yes"), TypeError, "choices must be a list of strings, got 'yes'"),
        (lambda: Grammar.choices([]), ValueError, "choices must be at least one string, and no string may be empty"),
        (lambda: Grammar.choices(["a", ""]), ValueError, "no string may be empty"),
        (lambda: Grammar.lark(7), TypeError, "a grammar must be a string, got int"),
    ],
)
def test_what_is_no_grammar(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^\d{3}$", r"\d{3}"),
        ("^a|b$", "a|b"),
        (r"\Aa\z", "a"),
        (r"[$^]\^(?i)(?:a)", r"[$^]\^(?i)(?:a)"),
        ("[]^]", "[]^]"),
    ],
)
def test_anchors_at_the_ends_say_nothing(pattern, expected):
    """Elsewhere, a table would silently lose an alternative."""
    assert Grammar.regex(pattern).source == expected


def test_without_the_extra_it_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ModuleNotFoundError, match=r"grammars need llguidance.*pip install 'jaxspec-decode\[grammar\]'"):
        Grammar.choices(["a"]).matcher_source()
