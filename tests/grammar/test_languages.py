"""The table and the host take the same texts of a schema, and no text whose value the schema forbids."""

import json
import random

import jsonschema
import pytest

from jaxspec.grammar import Grammar
from jaxspec.grammar.automaton import over_bytes
from tests._fixtures.grammars import follower, takes

NAME = {"type": "string", "maxLength": 6}
NONE = {"minItems": 1, "maxItems": 0}
PERSON = {"type": "object", "properties": {"name": NAME, "age": {"type": "integer"}}, "required": ["name"]}
SCHEMAS = {
    "string": {"type": "string"},
    "short": {"type": "string", "minLength": 1, "maxLength": 4},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "several types": {"type": ["number", "null", "string"]},
    "bounds": {"type": "integer", "minimum": -20, "maximum": 300},
    "bounded number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 7},
    "values": {"enum": ["a", "é", "a/b", 1, 1.5, -3, 0, True, None]},
    "strange numbers": {"enum": [1000.0, -0.0, 1e-7, 2.5e300, 0.25]},
    "large numbers": {"enum": [10**20, -(2**62)]},
    "strange values": {"enum": ['"', "\\", "\n", "😀", "a\tb", {"a": [1]}, []]},
    "constant": {"const": "a.b"},
    "keywords of another type": NAME | {"properties": {"a": {"type": "integer"}}, "required": ["a"], "minItems": 1},
    "object": PERSON,
    "open": PERSON | {"additionalProperties": True},
    "typed rest": PERSON | {"additionalProperties": {"type": "boolean"}},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "list": {"type": "array", "items": NAME, "maxItems": 3},
    "items that no value is": {"type": "array", "items": {"type": "array", "items": {"type": "null"}} | NONE},
    "names that no value has": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}, "b": {"type": "null"}},
    },
    "list of objects": {"type": "array", "items": PERSON, "minItems": 1},
    "tuple": {"type": "array", "prefixItems": [NAME, {"type": "null"}], "minItems": 1},
    "optional": {"type": "object", "properties": {"x": {"anyOf": [NAME, {"type": "null"}]}, "y": {"type": "boolean"}}},
    "choice": {"anyOf": [PERSON, {"type": "integer"}]},
    "either": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": k}, k: {"type": "integer"}}, "required": ["k", k]}
            for k in "ab"
        ]
    },
    "next to a choice": {
        "type": "object",
        "properties": {"k": NAME},
        "anyOf": [{"required": ["k"]}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
    },
    "all": {"allOf": [PERSON, {"properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    "reference": {"$defs": {"p": PERSON}, "type": "object", "properties": {"p": {"$ref": "#/$defs/p"}}},
    "next to a reference": {
        "$defs": {"p": PERSON},
        "$ref": "#/$defs/p",
        "properties": {"c": {"type": "null"}},
        "required": ["c"],
    },
    "tree": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "in": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
        "required": ["n"],
    },
    "patterned names": {
        "type": "object",
        "patternProperties": {'^[^"]?x': {"type": "integer"}, "^[a-c]$": {"type": "null"}},
    },
    "listed names": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": NAME},
    "date": {"type": "string", "format": "date", "examples": ["2020-02-29", "2021-02-29", "1999-12-31"]},
    "base64": {"type": "string", "pattern": "^$|^(?:[a-z+/]{4})*(?:[a-z]{3}=)?$", "examples": ["ab/+", "abc=", "a"]},
    "code": {"properties": {"x": {"type": "string", "pattern": "^[a-z]{2}-[0-9]+$", "examples": ["ab-1", "ab-"]}}},
    **{
        f"pattern {pattern}": {"type": "string", "pattern": pattern} | more
        for pattern, more in {
            '^[^"]+$': {},
            "^[^\\\\]+$": {"maxLength": 4},
            "[^\\n]": {},
            "^\\S+\\s\\S*$": {"examples": ["a b", '" \\']},
            "^[\\w.-]+@[^\\W\\d]+$": {"examples": ["a.b-@x", "a@é"]},
            "^.\\D\\W$": {},
            "^[!-~]*$": {"minLength": 2},
            "a|^b/?$": {},
            "^{[^}]*}$": {"examples": ['{"a"}', "{\\}", "{}"]},
            "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$": {"examples": ["-1.50", "+.5", "3.", "."]},
        }.items()
    },
}
PARTS = ['"', "\\", "\\n", "\\u00e9", "\\u000a", "\\/", '\\"', "\\\\", "é", "😀", "\x7f", "\x85", "\n", "\t", " "]
PARTS += ["{", "}", "[", "]", ",", ":", "null", "true", "0", "1", "-", ".", "e", "E+", "1e5", "x", "a", "b", "@", "/"]
PARTS += ['"a":1', ',"b":null', '"x":1', '"k":"a"', "\u2028", "\\ud800", "٣", "\x00", '"name":"', "9" * 16]

LETTERS = '"\\abxé/\n1-.@ 😀{}'


def value_of(schema, root, rng, depth=0):
    """Draws a value, which the schema allows as a rule."""
    if "examples" in schema and rng.random() < 0.5:
        return rng.choice(schema["examples"])
    if "$ref" in schema:
        target = root if schema["$ref"] == "#" else root["$defs"][schema["$ref"].split("/")[-1]]
        rest = {key: part for key, part in schema.items() if key not in ("$ref", "$defs")}
        schema = {"allOf": [target, rest]} if rest else target
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            rest = {key: part for key, part in schema.items() if key != word}
            chosen = schema[word] if word == "allOf" else [rng.choice(schema[word])]
            found = [value_of(one, root, rng, depth) for one in (rest, *chosen) if one]
            if all(isinstance(one, dict) for one in found):
                return {key: part for one in found for key, part in one.items()}
            return found[-1]
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "object")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        listed = schema.get("properties", {}).items()
        found = {
            name: value_of(part, root, rng, depth + 1)
            for name, part in listed
            if name in schema.get("required", ()) or rng.random() < 0.6 / (1 + depth)
        }
        rest = schema.get("additionalProperties")
        names = schema.get("propertyNames", {}).get("enum", ["x", "b c", "é", "z"])
        if isinstance(rest, dict):
            found |= {rng.choice(names): value_of(rest, root, rng, depth + 1) for _ in range(rng.randrange(3))}
        elif rest:
            found |= {rng.choice(names): rng.choice([1, "a", None, [], {"b": 1.5}]) for _ in range(rng.randrange(3))}
        for name in schema.get("patternProperties", {}):
            found[rng.choice(["x", "yx", "a", "b"])] = rng.choice([None, 1])
        return found
    if kind == "array":
        found = [value_of(part, root, rng, depth + 1) for part in schema.get("prefixItems", ())]
        most = schema.get("maxItems", 3) if "items" in schema else 0
        least = min(schema.get("minItems", 0), most)
        return found + [value_of(schema["items"], root, rng, depth + 1) for _ in range(rng.randint(least, most))]
    if kind == "string":
        return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(6)))
    low, high = schema.get("minimum", -50), schema.get("maximum", schema.get("exclusiveMaximum", 50))
    return {
        "integer": rng.randint(int(low), int(high)),
        "number": rng.choice([rng.randint(int(low), int(high)), round(rng.uniform(low, high), 2), 1e30, 1e-7]),
        "boolean": rng.random() < 0.5,
        "null": None,
    }[kind]


def texts_of(schema, rng, count):
    """Draws texts: values as they are written, and those with a few random changes."""
    for _ in range(count):
        value = value_of(schema, schema, rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.2, separators=(",", ":"))
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            place, end = sorted(rng.randrange(len(text) + 1) for _ in "ab")
            end = min(end, place + rng.choice([0, 0, 1, 2]))
            text = text[:place] + rng.choice([*PARTS, ""]) + text[end:]
        yield text


def allowed(schema, text):
    """Judges the value of a text. A value that JSON writes in several ways is judged once."""

    def unique(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=int)
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def walked(table, data):
    state = table.start
    for byte in data:
        state = table.following[state, table.classes[byte]]
    return bool(table.final[state])


def judge(name, count):
    """Gives the texts of one schema to the host, to its table and to the judge."""
    schema, rng = SCHEMAS[name], random.Random(name)
    grammar = Grammar.json_schema(schema)
    host, pattern, taken = follower(grammar), grammar.pattern, 0
    table = None if pattern is None else over_bytes(pattern)
    for text in texts_of(schema, rng, count):
        by_host = takes(host, text)
        assert table is None or walked(table, text.encode()) == by_host, (name, text, by_host)
        assert not by_host or allowed(schema, text), (name, text)
        taken += by_host
    return taken, table is not None


WORDS = "0 -0 0.5 1.50 -2.0 1e5 1E+05 1e999999999 -0.0e-0 01 +1 .5 1. 1e 1e+ 1.e5 0x1 1_0 NaN -Infinity 1e5.0 --1"
NUMBERS = [*WORDS.split(), "9" * 15, "9" * 16, f"-{'9' * 17}", "9" * 400, f"0.{'0' * 400}1"]


def test_numbers_are_json_s():
    """Without bounds, as many digits and exponents as JSON has; with one, doubles hold the number exactly or nearly."""
    grammar = Grammar.json_schema({"type": "number"})
    table, host, any_value = over_bytes(grammar.pattern), follower(grammar), follower(Grammar.json_schema({}))
    for text in NUMBERS:
        try:
            is_json = isinstance(json.loads(text, parse_constant=str, parse_int=float), float)
        except ValueError:
            is_json = False
        assert walked(table, text.encode()) == takes(host, text) == takes(any_value, text) == is_json, text
    bounds = {"minimum": -3}, {"exclusiveMaximum": 7}, {"multipleOf": 0.5}, {"type": ["number", "null"], "maximum": 9}
    for bound in bounds:
        one_sided = follower(Grammar.json_schema({"type": "number"} | bound))
        taken = [text for text in NUMBERS if takes(one_sided, text)]
        assert {"0", "-2.0"} <= {*taken} and ("0.5" if "multipleOf" in bound else "1.50") in taken
        assert all(allowed({"type": "number"} | bound, text) for text in taken)
        assert max(abs(float(text)) for text in taken) <= 1e15 and not any("e" in text for text in taken)


def test_table_host_and_judge():
    found = {name: judge(name, 12) for name in SCHEMAS}
    assert sum(tabled for _, tabled in found.values()) > 8


@pytest.mark.slow
def test_table_host_and_judge_on_ten_thousand_texts():
    found = {name: judge(name, 10_000 // len(SCHEMAS) + 1) for name in SCHEMAS}
    assert all(taken for taken, _ in found.values()), found
