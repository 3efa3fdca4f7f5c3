"""Names of properties keep to `propertyNames`; `jsonschema` is the judge."""

import itertools
import json
import re

import jsonschema
import pytest

from jaxspec.grammar import Grammar
from tests._fixtures.grammars import accepts, follower, takes

NAMES = ["", "a", "b", "bb", "ab", "abc", "x", "x1", "xyzzy", "a.c", "a+c", "1", "1234", "😀😀", "éa", 'a"', "\\d"]
FOLLOWED = [
    {"minLength": 2, "maxLength": 3},
    {"maxLength": 1},
    {"type": ["string", "null"], "minLength": 2},
    {"allOf": [{"minLength": 2}, {"maxLength": 4}, {"minLength": 1}]},
    {"pattern": "^[a-c]+$", "maxLength": 2},
    {"pattern": "^[a-z]*$", "minLength": 2},
    {"pattern": "b"},
    {"enum": ["a", "bb", "abc", 3], "maxLength": 2},
    {"const": "a.c"},
    {"enum": ["a", "bb", "x"], "allOf": [{"enum": ["x", "a"]}]},
    {"anyOf": [{"enum": ["a", "a+c"]}, {"pattern": "^x"}]},
    {"anyOf": [{"minLength": 3}, {"enum": ["\\d"]}, {"pattern": "^[b]+$", "maxLength": 1}, {"const": 3}]},
    {"anyOf": [{"minLength": 3}, {}]},
    {"anyOf": [{"type": "integer"}, {"enum": ["abc"], "maxLength": 2}]},
    {"enum": ["a", "abc"], "const": "abc"},
    {"type": "integer"},
    False,
    {"$ref": "#/$defs/name"},
]
AROUND = [
    {"additionalProperties": {"type": "null"}},
    {"additionalProperties": {"type": "null"}, "required": ["abc"]},
    {"properties": {"a": {}, "bb": {"type": "null"}, "abc": {}}},
    {"properties": {"a": {}, "abc": {}}, "additionalProperties": False},
]


@pytest.mark.parametrize("names", FOLLOWED, ids=json.dumps)
def test_names_are_those_of_the_judge(names):
    """Alone and in pairs, where any names may come or only named ones; closed objects are so for the judge too."""
    for around in AROUND:
        schema = {"type": "object", "propertyNames": names, "$defs": {"name": {"maxLength": 2}}} | around
        judge = jsonschema.Draft202012Validator({"additionalProperties": False} | schema)
        objects = [found for count in (0, 1, 2) for found in itertools.combinations(NAMES, count)]
        expected = [judge.is_valid(dict.fromkeys(one)) for one in objects]
        if not any(expected):
            with pytest.raises(ValueError, match="'abc' is unsatisfiable"):
                Grammar.json_schema(schema)
            continue
        host = follower(Grammar.json_schema(schema))
        for one, good in zip(objects, expected, strict=True):
            orders = map(dict.fromkeys, itertools.permutations(one))  # the grammar has one of listed names
            texts = [json.dumps(order, ensure_ascii=False, separators=(",", ":")) for order in orders]
            assert any(takes(host, text) for text in texts) == good, (schema, one)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"propertyNames": {"oneOf": [{"const": "a"}]}}, "it has oneOf"),
        (
            {"propertyNames": {"format": "uri", "pattern": "^h"}},
            "names of the format 'uri' are not followed; leave the",
        ),
        ({"propertyNames": {"format": "ipv6"}}, "names of the format 'ipv6' are not followed; write a pattern"),
        ({"propertyNames": {"pattern": "^a|b$", "maxLength": 3}}, "several of its conditions hold for one name; write"),
        ({"propertyNames": {"pattern": "^[a]+$", "minLength": 3, "maxLength": 2}}, "no name has such a length"),
        (
            {"propertyNames": {"anyOf": [{"pattern": "(?i)^a"}, {"const": "b"}]}},
            "a choice has the pattern '(?i)^a', whose",
        ),
        (
            {"propertyNames": {"minLength": 2}, "properties": {"a": {}}, "additionalProperties": True},
            "it is next to others that name properties",
        ),
        (
            {"propertyNames": {"maxLength": 2}, "properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
            "it is next to others that name properties",
        ),
        ({"propertyNames": {"format": "date", "pattern": "^2"}}, "several of its conditions hold for one name; write"),
        ({"propertyNames": {"enum": ["a"], "pattern": r"\p{L}"}}, "Python does not read a pattern of it: bad escape"),
    ],
)
def test_names_that_cannot_be_followed_are_named(schema, problem):
    text = f"schema.items.propertyNames cannot be followed by a grammar: {problem}"
    with pytest.raises(ValueError, match=re.escape(text)) as found:
        Grammar.json_schema({"items": schema})
    assert str(found.value).endswith("; write the names as properties or patternProperties")


def test_values_of_names_keep_to_what_remains():
    schema = {"propertyNames": {"minLength": 2}, "unevaluatedProperties": {"type": "integer"}}
    assert accepts(schema, '{"ab":1}') and not accepts(schema, '{"ab":"a"}')
    schema = {"properties": {"a": {}}, "required": ["b"], "unevaluatedProperties": {"type": "integer"}}
    schema["propertyNames"] = {"maxLength": 2}
    assert accepts(schema, '{"b":1}') and not accepts(schema, '{"b":"a"}')


def test_names_that_are_only_required_may_come():
    schema = {"properties": {"a": {}}, "required": ["bb"], "propertyNames": {"maxLength": 2}}
    assert accepts(schema, '{"a":1,"bb":2}') and not accepts(schema, '{"bb":2,"c":1}')
