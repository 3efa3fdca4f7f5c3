"""Objects are closed, annotations do not constrain, and what no grammar follows is named; `jsonschema` is the judge."""

import collections
import datetime
import decimal
import enum
import functools
import ipaddress
import itertools
import json
import pathlib
import re
import uuid
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import pydantic
import pytest

from jaxspec.grammar import Grammar
from tests._fixtures.grammars import accepts, follower, takes

A, B = {"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}
DEFINED = {"$defs": {"a": A, "b": B}}
# With a text that is taken, and one that only an open object allows.
CLOSED = {
    "plain": (A, '{"a":1}', '{"a":1,"x":1}'),
    "nothing": ({"type": "object", "properties": {}}, "{}", '{"x":1}'),
    "required alone": ({"type": "object", "required": ["a"]}, '{"a":[1]}', '{"a":1,"x":1}'),
    "nested": ({"properties": {"in": A}}, '{"in":{"a":1}}', '{"in":{"x":1}}'),
    "list": ({"type": "array", "items": A}, '[{"a":1}]', '[{"a":1,"x":1}]'),
    "rest": ({"type": "object", "additionalProperties": A}, '{"y":{"a":1}}', '{"y":{"x":1}}'),
    "reference": ({**DEFINED, "$ref": "#/$defs/a"}, '{"a":1}', '{"x":1}'),
    "itself": ({"properties": {"in": {"$ref": "#"}}}, '{"in":{"in":{}}}', '{"in":{"in":{"x":1}}}'),
    "patterns": ({"type": "object", "patternProperties": {"^y": {"type": "null"}}}, '{"yes":null}', '{"x":1}'),
    "all": ({"type": "object", "allOf": [A, B]}, '{"a":1,"b":null}', '{"a":1,"b":null,"x":1}'),
    "all of references": (
        {**DEFINED, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
        '{"a":1,"b":null}',
        '{"b":null,"x":1}',
    ),
    "next to a reference": ({**DEFINED, "$ref": "#/$defs/a", **B}, '{"a":1,"b":null}', '{"b":null,"x":1}'),
    "next to a choice": (
        {**DEFINED, **A, "anyOf": [{"$ref": "#/$defs/b"}, {"required": ["a"]}]},
        '{"a":1,"b":null}',
        '{"a":1,"x":null}',
    ),
    "two choices": ({"allOf": [{"anyOf": [A]}, {"anyOf": [B]}]}, '{"a":1,"b":null}', '{"b":null,"x":1}'),
    "inner pattern": (
        {"allOf": [A, {"type": "object", "patternProperties": {'^[^"]$': {}}}]},
        '{"a":1,"y":2}',
        '{"a":1,"xx":1}',
    ),
    "tuple": ({"type": "array", "prefixItems": [{"type": "null"}]}, "[null]", "[null,1]"),
    "old tuple": ({"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1}, "[null]", "[null,1]"),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_schema_allows_what_it_names(name):
    schema, good, bad = CLOSED[name]
    for text in (good, bad):
        jsonschema.validate(json.loads(text), schema)
    assert accepts(schema, good) and not accepts(schema, bad)


OPEN = {
    "all": {**A, "additionalProperties": True},
    "none named": {"type": "object"},
    "by a type": {**A, "additionalProperties": {"type": "integer"}},
    "unevaluated": {**A, "unevaluatedProperties": True},
    "in one of two": {"allOf": [A, {"additionalProperties": True}]},
    "around a choice": {"additionalProperties": True, "anyOf": [A]},
    "in a choice": {**A, "anyOf": [{"additionalProperties": True}]},
}


@pytest.mark.parametrize("name", OPEN)
def test_a_schema_may_allow_others(name):
    jsonschema.validate({"a": 1, "x": 1}, OPEN[name])
    assert accepts(OPEN[name], '{"a":1,"x":1}')


def test_names_come_in_the_order_of_the_schema():
    assert accepts({**DEFINED, "$ref": "#/$defs/b", **A}, '{"b":null,"a":1}')
    assert accepts({**A, "allOf": [B]}, '{"a":1,"b":null}')


def test_a_reference_is_a_json_pointer():
    schema = {"$defs": {"a/b c": A, "l": [A]}, "type": "array", "prefixItems": [{"$ref": "#/$defs/a~1b%20c"}]}
    assert accepts(schema, '[{"a":1}]') and not accepts(schema, '[{"x":1}]')
    assert accepts({**schema, "prefixItems": [{"$ref": "#/$defs/l/0"}]}, '[{"a":1}]')


def test_one_of_choices_that_exclude_each_other_is_a_choice():
    """Of references too, as pydantic writes them; by a required constant, by listed values, or by type."""
    cat, dog = ({"properties": {"k": {"const": k}}, "required": ["k"], "type": "object"} for k in ("cat", "dog"))
    schema = {"$defs": {"cat": cat, "dog": dog}, "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}
    assert accepts(schema, '{"k":"cat"}') and not accepts(schema, '{"k":"cow"}')
    assert accepts({"oneOf": [cat, {"type": "null"}, {"enum": [1, 2]}]}, "2")
    either = {"type": "object", "oneOf": [{"required": ["a"], **A}, B]}
    assert accepts(either, '{"a":1}') and not accepts(either, '{"a":1,"b":null}')
    overlapping = [{"enum": [1, 2]}, {"const": 1.0}], [A, B], [{"type": "integer"}, {"type": "number"}]
    for choices in (*overlapping, [{"type": "object", **A}, {"type": "object", "properties": {"b": {}}}]):
        with pytest.raises(ValueError, match=r"schema.oneOf has choices that may hold together, 0 and 1; write anyOf"):
            Grammar.json_schema({"oneOf": choices})


def test_a_choice_that_is_closed_has_no_room_for_what_is_next_to_it():
    """Its own `additionalProperties` forbids that; one that is only closed by default does not."""
    schema = {"properties": {"k": {}}, "anyOf": [{**A, "additionalProperties": False}, B]}
    for text, expected in (('{"a":1}', True), ('{"a":1,"k":1}', False), ('{"k":1,"b":null}', True)):
        assert accepts(schema, text) == expected


FORMATS = ["int64", "password", "path", "byte", "binary", "phone", "decimal", "regex", "ipv4network"]


def test_other_formats_are_annotations():
    for form in FORMATS:
        with pytest.warns(UserWarning, match=f"format '{form}' constrains no text here; write a pattern") as warned:
            grammar = Grammar.json_schema({"type": "array", "prefixItems": [{"type": "string", "format": form}] * 2})
        assert len(warned) == 1
        assert takes(follower(grammar), '["a","b"]')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accepts({"type": "integer", "format": "int64"}, "7")


def test_a_choice_that_cannot_be_followed_is_left_out():
    schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "a(?=b)"}]}
    with pytest.warns(UserWarning, match=r"a choice is left out: schema.anyOf\[1\] has the pattern"):
        grammar = Grammar.json_schema(schema)
    assert takes(follower(grammar), "1.5") and not takes(follower(grammar), '"a"')


def test_a_date_is_one_that_exists():
    host = follower(Grammar.json_schema({"type": "string", "format": "date"}))
    years, days = ("0000", "0004", "1900", "2000", "2023"), (0, 1, 28, 29, 30, 31, 32)
    for year, month, day in itertools.product(years, range(14), days):
        text = f"{year}-{month:02}-{day:02}"
        try:
            exists = datetime.date.fromisoformat(text) is not None
        except ValueError:
            exists = False
        assert takes(host, f'"{text}"') == exists, text


class Kind(enum.Enum):
    HIGH = "high"
    LOW = "low"


class Point(NamedTuple):
    x: int
    name: str = "a"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    born: datetime.date


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    friends: list[Cat] = []


ZONE = datetime.UTC
TABLE = [
    *((int, 3), (float, 1.5), (bool, True), (str, 'a"\\\n'), (type(None), None), (Kind, Kind.LOW), (dict, {"a": [1]})),
    *((list, [1, "a"]), (list[int], [1]), (tuple[int, str], (1, "a")), (tuple[int, ...], (1, 2)), (Point, Point(1))),
    *((Sequence[int], [1]), (collections.deque[int], collections.deque([1])), (dict[str, int], {"é": 1})),
    *((dict[int, int], {1: 2}), (dict[Kind, int], {Kind.LOW: 1}), (Any, {"a": None}), (int | str | None, "a")),
    *(
        (Literal["a", 1, None], 1),
        (decimal.Decimal, decimal.Decimal("1.50")),
        (datetime.time, datetime.time(10, 11, 12)),
    ),
    (dict[Annotated[str, pydantic.StringConstraints(pattern="^[a-c]+$")], int], {"ab": 1}),
    (dict[datetime.date, int], {datetime.date(2020, 2, 29): 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=5): 1}),
    (datetime.time, datetime.time(10, 11, 12, 5000, tzinfo=ZONE)),
    (datetime.datetime, datetime.datetime(2020, 2, 29, 10, 11, 12, tzinfo=ZONE)),
    (datetime.date, datetime.date(2020, 2, 29)),
    (datetime.timedelta, datetime.timedelta(days=1, hours=2)),
    (uuid.UUID, uuid.UUID(int=5)),
    (pydantic.UUID4, uuid.UUID("7f7a1c5e-52a8-4b1c-8a0f-1f4b5f0f6b10")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (ipaddress.IPv6Address, ipaddress.IPv6Address("::1")),
    (ipaddress.IPv4Network, ipaddress.IPv4Network("10.0.0.0/8")),
    (pydantic.IPvAnyAddress, ipaddress.IPv6Address("fe80::1")),
    (pathlib.Path, pathlib.Path("/a/b")),
    (bytes, b"ab"),
    (re.Pattern, re.compile("a+")),
    (pydantic.AnyUrl, pydantic.AnyUrl("https://example.com/a?b=c")),
    (pydantic.PostgresDsn, pydantic.PostgresDsn("postgres://user@localhost:5432/a")),
    (pydantic.ByteSize, 1024),
    (pydantic.SecretStr, "secret"),
    (pydantic.Base64Str, "YWI="),
    (pydantic.conint(gt=0, multiple_of=5), 15),
    (pydantic.constr(min_length=2, pattern="^a+$"), "aa"),
    (pydantic.conlist(int, min_length=1, max_length=2), [1, 2]),
    (Cat | Dog, Dog(kind="dog", friends=[Cat(kind="cat", born=datetime.date(2020, 1, 2))])),
    (
        Annotated[Cat | Dog, pydantic.Field(discriminator="kind")],
        Cat(kind="cat", born=datetime.date(2020, 1, 2)),
    ),
]


@pytest.mark.filterwarnings("ignore:format ")
@pytest.mark.parametrize("place", range(len(TABLE)))
def test_what_pydantic_writes_is_taken(place):
    kind, value = TABLE[place]
    adapter = pydantic.TypeAdapter(kind)
    schema = adapter.json_schema()
    text = json.dumps(value) if isinstance(value, str) else adapter.dump_json(value, warnings=False).decode()
    adapter.validate_json(text)
    jsonschema.validate(json.loads(text), schema)
    assert accepts(schema, text), (schema, text)


EXCLUDE = "schema.items allows no text: its values, patterns, formats and lengths exclude each other"


DEEP = functools.reduce(lambda inner, _: {"items": inner}, range(3000), {})
DEEP_CHOICES = functools.reduce(lambda inner, _: {"anyOf": [inner]}, range(460), {})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            set[int],
            "schema.uniqueItems cannot be followed by a grammar; leave it out (pydantic: a list instead of a set)",
        ),
        (
            dict[ipaddress.IPv6Address, int],
            "schema.propertyNames cannot be followed by a grammar: names of the format 'ipv6' are not followed; write",
        ),
        (
            {"properties": {"x": {"not": {"type": "null"}}}},
            "schema.properties.x.not cannot be followed by a grammar; say",
        ),
        (
            {"items": {"if": {}, "then": {}}},
            "schema.items.if cannot be followed by a grammar; write the cases as anyOf",
        ),
        ({"anyOf": [{"contains": {}}]}, "schema.anyOf[0].contains cannot be followed"),
        ({"$defs": {"a": {"not": A}}, "items": {"$ref": "#/$defs/a"}}, "schema.$defs.a.not cannot be followed"),
        ({"properties": {"x": {"enum": ["a\x01"]}}}, "schema.properties.x lists 'a\\x01', with a control character"),
        ({"properties": {"x": {"enum": [2**53 + 1]}}}, "schema.properties.x has the number 9007199254740993, which no"),
        ({"type": "integer", "minimum": 10**400}, "schema has the number 1000"),
        ({"const": float("inf")}, "schema has the number inf, which no double holds; write it as a string"),
        ({"items": {"$ref": "#/$defs/a"}}, "schema.items.$ref is '#/$defs/a', which this schema does not define"),
        ({"$ref": "https://example.com"}, "schema.$ref is 'https://example.com', which this schema does not define"),
        ({"allOf": [{"$ref": "#"}, A]}, "the schema requires # within itself"),
        (
            {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}], **A}}, "$ref": "#/$defs/a", **B},
            "schema is nested too deeply",
        ),
        ({"pattern": 7}, "schema.pattern must be a string, got 7"),
        ({"format": []}, "schema.format must be a string, got []"),
        ({"allOf": [False]}, "schema is false, which no text can satisfy"),
        ({"items": "x"}, "schema.items must be an object, true or false, got 'x'"),
        ({"$ref": "#/x", "x": {"anyOf": [5]}}, "schema.x.anyOf[0] must be an object, true or false, got 5"),
        ({"required": ["a", ["b"]]}, "schema.required must be a list of names, got ['b'] in it"),
        ({"type": []}, "schema.type is [], expected one of array"),
        ({"multipleOf": 0}, "schema.multipleOf must be a number above 0, got 0"),
        ({"maxProperties": 1.5}, "schema.maxProperties must be an integer of at least 0, got 1.5"),
        (
            {"propertyNames": {"pattern": "a", "minLength": 2}},
            "schema.propertyNames cannot be followed by a grammar: several of its conditions hold for one name; write",
        ),
        ({"x-guidance": 5}, "schema.x-guidance must be an object, got 5"),
        (DEEP, "schema is nested too deeply"),
        (DEEP_CHOICES, "schema is nested too deeply"),
        ({"properties": {"\ud800": {}}}, "schema lists '\\ud800', with a control character or surrogate"),
        ({"enum": [0.09103597991823327]}, "schema lists 0.09103597991823327, whose last digit the library rounds"),
        ({"required": ["a\x01"]}, "schema lists 'a\\x01', with a control character or surrogate"),
        ({"const": [{"\ud800": 1}]}, "schema lists '\\ud800', with a control character or surrogate"),
        ({"enum": [{"a": {"\x01": 1}}]}, "schema lists '\\x01', with a control character or surrogate"),
        ({"items": {"pattern": "^a$", "minLength": 3, "type": "string"}, "minItems": 1, "type": "array"}, EXCLUDE),
        (
            {"$defs": {"a": {"enum": ["a"], "const": "b"}}, "$ref": "#/$defs/a", "title": "t"},
            EXCLUDE.replace("items", "$defs.a"),
        ),
        (
            {"minProperties": 3, "properties": {"a": {}}, "type": "object"},
            "schema cannot be followed by a grammar: minProperties and maxProperties need all named properties",
        ),
        (
            {"type": "object", "patternProperties": {"^a": {}, "a$": {}}},
            "schema cannot be followed by a grammar: two patterns of patternProperties match the same name; write",
        ),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "schema allows no text: integer interval"),
        (
            {"items": {"type": "number", "minimum": -1.5, "maximum": -1.499, "multipleOf": 0.25}},
            "schema.items allows no text: no multiple is written within its bounds; write enum",
        ),
        ({"enum": [1.5], "multipleOf": 0.25}, "schema allows no text: no multiple is written"),
        ({"type": "integer", "multipleOf": 99999989}, "schema.multipleOf of 99999989 takes long to follow; write a"),
        (
            {"multipleOf": 0.9973, "allOf": [{"multipleOf": 0.9967}]},
            "schema.multipleOf of 0.9973 and 0.9967 takes long",
        ),
        ({"multipleOf": 331, "anyOf": [{"multipleOf": 337}]}, "schema.anyOf[0].multipleOf of 331 and 337 takes"),
        (
            {"allOf": [{"properties": {"a": {"multipleOf": one}}} for one in (331, 337)]},
            "schema.properties.a.multipleOf of 331 and 337 takes long",
        ),
        (
            {"items": {"multipleOf": 331}, "oneOf": [{"items": {"anyOf": [{"multipleOf": 337}]}}]},
            "schema.oneOf[0].items.multipleOf of 331 and 337 takes long",
        ),
    ],
)
def test_what_cannot_be_followed_is_named(schema, text):
    given = schema if isinstance(schema, dict) else pydantic.TypeAdapter(schema).json_schema()
    with pytest.raises(ValueError, match=re.escape(text)):
        Grammar.json_schema(given)


def test_multiples_of_many_numbers_are_followed():
    for multiple, text in ((7, "21"), (3600, "7200"), (2_500_000, "5000000"), (0.01, "0.07"), (10**8, "0")):
        assert accepts({"type": "number", "multipleOf": multiple}, text)
    # Listed values bound them, and for those of another type they say nothing.
    assert accepts({"enum": [199999978], "multipleOf": 99999989}, "199999978")
    assert accepts({"type": "string", "multipleOf": 99999989, "minimum": 1}, '"a"')
    own = {"$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}, "type": "object"}
    shared = [{"properties": {"a": one}, "required": ["a"]} for one in ({"$ref": "#/$defs/n"}, {"type": "null"})]
    with pytest.raises(ValueError, match="references lead to each other"):
        Grammar.json_schema(own | {"allOf": shared})


def test_unevaluated_properties_close_an_object_of_several_schemas():
    """Together with what these name; a choice that names nothing has no properties either."""
    closed = {"unevaluatedProperties": False}
    for schema in ({"allOf": [A], **B}, {"$defs": {"a": A}, "$ref": "#/$defs/a", **B}, {"anyOf": [A], **B}):
        assert accepts(schema | closed, '{"a":1,"b":null}') or accepts(schema | closed, '{"b":null,"a":1}')
        assert not accepts(schema | closed, '{"a":1,"b":null,"c":1}')
    either = {"anyOf": [{"type": "object"}, {"type": "null"}]} | closed
    assert accepts(either, "{}") and accepts(either, "null") and not accepts(either, '{"a":1}')
    # Names that are only required, or that only others around evaluate, are not.
    for schema in ({"allOf": [A], "required": ["c"]}, {"allOf": [{"allOf": [A], **closed}, B]}):
        with pytest.raises(ValueError, match="allows no text: required property"):
            Grammar.json_schema(schema | closed | {"type": "object"})


def test_expressions_that_double_are_followed_by_the_host():
    """An array inside another doubles the expression, and so does a definition with two references to the next."""
    nested = functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(50), {"type": "null"})
    two = lambda name: {"properties": {"a": {"$ref": name}, "b": {"$ref": name}}, "type": "object"}  # noqa: E731
    doubled = {"$defs": {f"d{n}": two(f"#/$defs/d{n + 1}") for n in range(40)} | {"d40": {}}, **two("#/$defs/d0")}
    each = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}
    each = each | {"$ref": "#/$defs/d0"}
    each["$defs"]["d40"] = {"type": "null"}
    chain = {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(999)} | {"d999": {"type": "null"}}}
    chain |= {"$ref": "#/$defs/d0"}
    for schema, text in ((nested, "[[]]"), (doubled, '{"b":{}}'), (each, "null"), (chain, "null")):
        assert accepts(schema, text)
    for schema in (nested, doubled, chain, {"type": "string", "maxLength": 70_000}):
        assert Grammar.json_schema(schema).pattern is None


def test_optional_parts_that_never_end_are_named():
    endless = {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}}
    tuples = {"type": "array", "minItems": 1, "prefixItems": [{"anyOf": [{"$ref": "#/$defs/a"}]}]}
    named = {"type": "object", "required": ["x"], "patternProperties": {"^x": {"$ref": "#/$defs/a"}}}
    others = {"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#/$defs/a"}}
    some = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/a"}}
    apart = {"allOf": [{"type": "object"}, {"required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}}]}
    several = {"type": ["object", "array"], "minItems": 1, "items": {"$ref": "#/$defs/a"}} | apart["allOf"][1]
    for part in (endless, tuples, {"$ref": "#/$defs/a"}, named, others, some, apart, several):
        with pytest.raises(
            ValueError, match=r"requires #/\$defs/a within itself, so no text can end; make it optional"
        ):
            Grammar.json_schema({"$defs": {"a": part}, "properties": {"in": {"$ref": "#/$defs/a"}}})
    ends = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    assert accepts({"$defs": {"a": ends}, "items": {"$ref": "#/$defs/a"}, "minItems": 1, "type": "array"}, "[null]")
    or_null = endless | {"type": ["object", "null"]}
    assert accepts({"$defs": {"a": or_null}, "$ref": "#/$defs/a"}, '{"x":{"x":null}}')
    more = {"type": "object", "required": ["y"], "properties": {"y": {}}, "additionalProperties": {"$ref": "#/$defs/a"}}
    assert accepts({"$defs": {"a": more}, "$ref": "#/$defs/a"}, '{"y":1,"z":{"y":2}}')
    free = named | {"patternProperties": {"^y": {"$ref": "#/$defs/a"}}, "additionalProperties": True}
    assert accepts({"$defs": {"a": free}, "$ref": "#/$defs/a"}, '{"x":1,"y":{"x":1}}')


def test_an_excluded_bound_is_no_value():
    """Also next to the other bound, where the library allows it, and if one of them stands in another schema."""
    for low, high in itertools.product((-1, 0, 1, 100), (0.05, 0.5, 1, 10)):
        schema = {"type": "number", "exclusiveMinimum": low, "allOf": [{"exclusiveMaximum": low + high}]}
        host = follower(Grammar.json_schema(schema))
        for text in map(str, (low, low + 0.01, low + 0.3, low + 0.9, low + high)):
            assert takes(host, text) == (low < float(text) < low + high), (schema, text)


def test_keywords_that_exclude_nothing_are_taken():
    schema = {"type": "array", "items": {"type": "null"}, "uniqueItems": True, "maxItems": 1, "if": {}}
    assert accepts(schema, "[null]")
    assert accepts({"type": "null", "uniqueItems": False, "not": False, "propertyNames": {"type": "string"}}, "null")


FLOAT32 = {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def test_bounds_of_all_numbers_of_a_kind():
    """As zod and others write them: no double holds some, and the library writes none that is so large."""
    for schema, text in ((FLOAT32, "-1.5"), (INT64, "-7"), ({"type": "integer", "maximum": 2**64 - 1}, str(10**14))):
        assert accepts(schema, text) and accepts({"anyOf": [schema, {"type": "null"}]}, text)
    assert not accepts(FLOAT32, "9" * 40) and not accepts(INT64, str(2**63))


@pytest.mark.parametrize("flag", [True, False])
def test_bounds_of_old_drafts(flag):
    """There a flag excludes the bound; OpenAPI 3.0 has it too."""
    low = {"type": "integer", "minimum": 0, "exclusiveMinimum": flag}
    high = {"type": "number", "maximum": 1.5, "exclusiveMaximum": flag, "minimum": 0}
    for schema, texts in ((low, ("0", "1", "-1")), (high, ("1.5", "1.25", "2")), ({"exclusiveMinimum": flag}, "05")):
        judge = jsonschema.Draft4Validator(schema)
        for text in texts:
            assert accepts(schema, text) == judge.is_valid(json.loads(text)), (schema, text)


def test_what_is_never_there():
    """As zod writes it: a property that may not come, a choice that no value is, and no items."""
    never, contains = {"not": {}}, {"contains": {"type": "null"}, "minContains": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = {"properties": {"a": never, "b": {"anyOf": [never, {"type": "null"}]}}, "type": "object"}
        for text, expected in (("{}", True), ('{"b":null}', True), ('{"a":1}', False), ('{"b":1}', False)):
            assert accepts(schema, text) == expected
        assert accepts({"type": "array", "items": never}, "[]") and not accepts({"items": never}, "[1]")
        assert accepts({"type": "array", "items": {"type": "integer"}} | contains, "[1]")
    with pytest.raises(ValueError, match="schema is false, which no text can satisfy"):
        Grammar.json_schema(never)


class Calls(pydantic.BaseModel):
    function: collections.abc.Callable


CIRCLE: dict[str, Any] = {"type": "array"}
CIRCLE["items"] = CIRCLE


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Calls, "schema: Calls.model_json_schema() failed: Cannot generate a JsonSchema for core_schema.Callable"),
        (CIRCLE, "schema must be what JSON can express: Circular reference detected; pass model_dump()"),
        ({"maximum": 10**5000}, "schema must be what JSON can express: Exceeds the limit (4300 digits) for integer"),
        ({"enum": [{1}]}, "schema must be what JSON can express: Object of type set is not JSON serializable; pass"),
    ],
    ids=["function", "circle", "digits", "set"],
)
def test_what_is_no_json(schema, text):
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(text)):
        Grammar.json_schema(schema)


NAMED = {
    "anchor": ("#here", {"$anchor": "here"}),
    "dynamic anchor": ("#here", {"$dynamicAnchor": "here"}),
    "address": ("https://other.com/b", {"$id": "https://other.com/b"}),
    "relative": ("b", {"$id": "b"}),
    "relative to the address above": ("https://example.com/b", {"$id": "b"}),
    "from the root": ("a.json#/$defs/x", {}),
    "anchor at an address": ("b#here", {"$id": "b", "$anchor": "here"}),
    "pointer from an address": ("b#/$defs/y", {"$id": "b", "$defs": {"y": B}, "$ref": "#/$defs/y"}),
    "urn": ("urn:uuid:5", {"$id": "urn:uuid:5"}),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_reference_is_an_anchor_or_an_address(name):
    reference, named = NAMED[name]
    schema = {"$id": "https://example.com/a.json", "$defs": {"x": named | B}, "type": "array"}
    schema |= {"items": {"$ref": reference}, "minItems": 1}
    for text in ('[{"b":null}]', '[{"b":1}]', "[1]"):
        assert accepts(schema, text) == jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


def test_names_and_values_are_no_references():
    """Properties called `$ref` and `$id`, and listed values that have them; unused definitions may be anything."""
    schema = {"properties": {name: {"type": "null"} for name in ("$ref", "$id", "$anchor")}, "minProperties": 1}
    endless = {"items": {"$ref": "#/$defs/a"}, "minItems": 1}
    assert accepts(schema | {"type": "object", "required": ["$ref"]}, '{"$ref":null}')
    assert accepts({"enum": [{"$id": "x", "$ref": "y"}], "$defs": {"a": endless}}, '{"$id":"x","$ref":"y"}')
    for schema in ({"$anchor": "r"}, {"$id": "r"}):
        reference = {"properties": {"a": {"$ref": "#r" if "$anchor" in schema else "r"}}, "required": ["a"]}
        with pytest.raises(ValueError, match="the schema requires # within itself"):
            Grammar.json_schema(schema | reference)


def test_a_float_may_be_an_integer():
    sizes = {"minItems": 1.0, "maxItems": 2.0, "items": {"maxLength": 1.0, "minLength": 1.0, "type": "string"}}
    assert accepts({"type": "array"} | sizes, '["a"]') and not accepts({"type": "array"} | sizes, '["a","b","c"]')
    assert accepts({"type": "object", "minProperties": 1.0}, '{"a":1}')
    assert accepts({"type": "integer", "minimum": 1.0, "multipleOf": 2.0}, "4")


APART = [
    [{"type": "integer", "maximum": 4}, {"type": ["integer", "null"], "minimum": 5}],
    [{"type": "number", "exclusiveMaximum": 5}, {"allOf": [{"minimum": 5}, {"type": "number"}]}],
    [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}],
    [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}, {"enum": ["c", 1, 2.5]}],
    [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}],
    [{"type": "array", "minItems": 1, "prefixItems": [{"const": kind}, {"$ref": "#"}]} for kind in ("a", "b")],
    [
        {"type": "object", "required": ["n"], "properties": {"n": {"type": "null"} | x}}
        for x in ({}, {"type": "integer"})
    ],
]
TOGETHER = [
    [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 5}],
    [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}],
    [{"maximum": 4}, {"minimum": 5}],
    [{"const": 1.0}, {"type": "integer", "maximum": 1}],
    [{"enum": [[1.0, {"a": 2}]]}, {"const": [1, {"a": 2.0}]}],
    [{"const": [1.0]}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}],
    [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}],
    [{"type": "array", "items": {"$ref": "#/oneOf/1"}, "minItems": 1}, {"type": "array", "minItems": 2}],
]


@pytest.mark.parametrize("choices", APART)
def test_choices_may_be_told_apart_by_their_bounds(choices):
    texts = ["4", "5", "2.5", "null", '"abc"', '"bcde"', '"c"', "[4]", "[4,5]", '["a",5]', '["b"]', '{"n":5}']
    for text in texts:
        assert accepts({"oneOf": choices}, text) == jsonschema.Draft202012Validator({"oneOf": choices}).is_valid(
            json.loads(text)
        )


@pytest.mark.parametrize("choices", TOGETHER)
def test_choices_that_may_hold_together_are_named(choices):
    with pytest.raises(ValueError, match=r"schema.oneOf has choices that may hold together, 0 and 1; write anyOf"):
        Grammar.json_schema({"oneOf": choices})
