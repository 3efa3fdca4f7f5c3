"""Reads JSON schemas, and converts those that a regular expression covers exactly."""

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from jaxspec.grammar.automaton import MOST_STATES, needed
from jaxspec.grammar.dialect import unescaped
from jaxspec.grammar.references import NAMED_SCHEMAS, references, referred, with_pointers
from jaxspec.io.files import json_value

# Keywords that the regular expression enforces, and those that do not constrain a text. It would ignore any others.
_HELD = {"type", "properties", "required", "items", "enum", "const", "anyOf", "minLength", "maxLength", "minItems"}
_HELD |= {"maxItems", "additionalProperties", "$ref", "$defs", "definitions", "pattern"}
_SILENT = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalItems", "additionalProperties", "unevaluatedProperties", "propertyNames")
_TYPES = dict.fromkeys((*NAMED_SCHEMAS, "x-guidance"), dict) | dict.fromkeys(
    ("pattern", "format", "$ref", "$id", "$anchor"), str
)
_TYPES |= dict.fromkeys(("required", "enum", *_SCHEMA_LISTS), list)
_SCALARS = (str, int, float, bool, type(None))
# Where the two libraries write numbers and letters differently; in names and values these characters are escaped.
_AS_THE_HOST = {
    r"([eE][+-][0-9]+)?": r"([eE][+-]?[0-9]+)?",
    r"\x7F-\x9F]": r"\x7F]",
    r"""|\\["\\/bfnrt])""": r"""|\\["\\bfnrt])""",
}
# The limit for an integer without bounds, and before the point of a number with one bound: double precision represents
# all of these (RFC 8259, section 6). Small models write digits without end.
MOST_DIGITS = 15
# Bounds farther from 0, such as those of float32 or of 64 bits, are replaced by this: the library fails on them.
_FARTHEST = 10**17
# The most parts of an expression, which repeats items: each array inside another doubles them.
_MOST_PARTS = 2**16
# An integer in an expression, unless it is the beginning of a number, which a point follows.
_INTEGER = re.compile(re.escape("(0|[1-9][0-9]*)") + r"(?!\)\(\\\.)")
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
TYPES = {"string", "integer", "number", "boolean", "null", "array", "object"}
_SHAPES = frozenset(("object", "array", "scalar"))
# The keywords that constrain values of one type only.
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": _BOUNDS,
}


def as_dict(schema: Any) -> dict[str, Any]:
    """Returns a schema as a dictionary.

    Args:
      schema: a dictionary, its JSON text, or a class with `model_json_schema()`.

    Raises:
      TypeError, ValueError: `schema` is none of these, or no text can satisfy it.
    """
    given = schema
    if hasattr(schema, "model_json_schema"):
        try:
            schema = schema.model_json_schema()
        except Exception as error:  # pydantic's own, if a field is a function
            reason = str(error).partition("\n")[0]
            name = getattr(given, "__name__", type(given).__name__)
            raise ValueError(f"schema: {name}.model_json_schema() failed: {reason}; pass the schema itself") from error
    if isinstance(schema, str):
        try:
            schema = json_value(schema)
        except ValueError as error:
            raise ValueError(f"schema must be JSON, got {given!r:.80}: {error}") from None
    if not isinstance(schema, dict):
        raise TypeError(
            f"schema must be a dictionary, JSON, or a class with model_json_schema(), got {type(given).__name__}; pass "
            '{"type": "object", ...} or a pydantic model'
        )
    try:
        schema = json.loads(json.dumps(schema))
    except (TypeError, ValueError) as error:  # if it holds itself, or an integer of thousands of digits
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"schema must be what JSON can express: {error}; pass model_dump() of a model, say") from None
    except RecursionError:
        raise ValueError("schema is nested too deeply") from None
    try:
        schema = with_pointers(schema)
        _check_kinds(schema, "schema")
        for name in sorted(references(schema)):
            if (part := referred(name, schema)) is not None:
                _check_kinds(part, f"schema{name[1:].replace('/', '.')}")
        _check(schema, "schema")
        _check_ends(schema)
    except RecursionError:
        raise ValueError("schema is nested too deeply") from None
    return schema


def pattern(schema: dict[str, Any]) -> str | None:
    """Returns a regular expression for a schema's JSON; `None` if it is too large or would not enforce all.

    Integers have at most `MOST_DIGITS` digits. There is no white space
    between elements, as in `json.dumps(..., separators=(",", ":"))`: otherwise drafts could not predict it.
    """
    try:
        if _size(schema, schema, (), {}) > _MOST_PARTS or not _covered(schema, schema, ()):
            return None
        build = needed("outlines_core.json_schema").build_regex_from_schema
        found = build(json.dumps(_unescaped(schema)), "")
    except (TypeError, ValueError, RecursionError):  # of hundreds of references that follow each other
        return None
    found = _INTEGER.sub(f"(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})", found)
    return functools.reduce(lambda text, pair: text.replace(*pair), _AS_THE_HOST.items(), found)


def _unescaped(schema: Any) -> Any:
    """Returns a covered schema with patterns as they stand in its text."""
    if isinstance(schema, list):
        return [_unescaped(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _unescaped(one) for key, one in schema.items()}
    return found | ({"pattern": unescaped(found["pattern"])} if isinstance(found.get("pattern"), str) else {})


def without_idle(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without keywords for values of types that it does not allow, which expressions would follow."""
    kinds = schema.get("type", TYPES)
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    kinds |= {"number"} if "integer" in kinds else set()
    idle = {name for kind, names in _OF_TYPE.items() if kind not in kinds for name in names}
    return {key: value for key, value in schema.items() if key not in idle}


def with_bounded_numbers(schema: Any) -> Any:
    """Returns a schema with bounds added to integers, as in `pattern`, and to numbers with some other bound."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in set(NAMED_SCHEMAS) & set(found):
        found[name] = {key: with_bounded_numbers(value) for key, value in found[name].items()}
    for name in ("items", "additionalProperties"):
        if name in found:
            found[name] = with_bounded_numbers(found[name])
    for name in ("anyOf", "oneOf", "prefixItems"):
        if name in found:
            found[name] = [with_bounded_numbers(one) for one in found[name]]
    if "allOf" in found:
        found["allOf"] = [with_bounded_numbers(one) if "properties" in one else one for one in found["allOf"]]
    kinds = found.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    integers = "integer" in kinds and "number" not in kinds
    # Numbers without any of these have exponents, which would be lost.
    bounded = (not kinds or "number" in kinds) and not _BOUNDS.isdisjoint(found)
    # Together with these keywords, another bound might leave no value.
    if not (integers or bounded) or {"enum", "const", "allOf", "$ref"} & set(found):
        return found
    most = 10**MOST_DIGITS - 1
    low = found.get("minimum", found.get("exclusiveMinimum"))
    high = found.get("maximum", found.get("exclusiveMaximum"))
    if high is None and (low is None or low < most):
        found["maximum"] = most
    if low is None and (high is None or high > -most):
        found["minimum"] = -most
    return found


def _check(schema: Any, where: str) -> None:
    """Raises `ValueError` for a part that no text can satisfy, naming its place."""
    if schema is False:
        raise ValueError(f"{where} is false, which no text can satisfy")
    if not isinstance(schema, dict):
        return
    for name in ("enum", "anyOf", "oneOf"):
        if schema.get(name) == []:
            raise ValueError(f"{where}.{name} is empty, so no text can satisfy it; list at least one")
    faults = [_fault(one, f"{where}.anyOf[{index}]") for index, one in enumerate(schema.get("anyOf", ()))]
    if faults and all(faults):
        raise ValueError(faults[0])
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        if low in schema and high in schema and schema[low] > schema[high]:
            raise ValueError(f"{where} has {low}={schema[low]} above {high}={schema[high]}: no text can satisfy it")
    for name, value in (schema.get("properties") or {}).items():
        if name in schema.get("required", ()):
            _check(value, f"{where}.properties.{name}")
    if isinstance(schema.get("items"), dict) and schema.get("minItems", 0) > 0:
        _check(schema["items"], f"{where}.items")


def _fault(schema: Any, where: str) -> str | None:
    """Returns why no text can satisfy a schema; `None` if one may."""
    try:
        _check(schema, where)
    except ValueError as error:
        return str(error)
    return None


def _check_kinds(schema: Any, where: str) -> None:
    """Raises `ValueError` if a keyword's value has the wrong type, here or in a subschema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{where} must be an object, true or false, got {schema!r:.80}")
    for name, kind in _TYPES.items():
        if name in schema and not isinstance(schema[name], kind):
            expected = {dict: "an object", list: "a list", str: "a string"}[kind]
            raise ValueError(f"{where}.{name} must be {expected}, got {schema[name]!r:.80}")
    if wrong := [one for one in schema.get("required", ()) if not isinstance(one, str)]:
        raise ValueError(f"{where}.required must be a list of names, got {wrong[0]!r:.80} in it")
    given = schema.get("type", "null")
    for kind in given if isinstance(given, list) and given else [given]:
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError(f"{where}.type is {kind!r:.80}, expected one of {', '.join(sorted(TYPES))}")
    _check_numbers(schema, where)
    for name, part in _inside(schema):
        _check_kinds(part, f"{where}.{name}")


def _check_numbers(schema: dict[str, Any], where: str) -> None:
    """Raises `ValueError` if a size or bound has the wrong type; converts sizes such as 1.0 and old bounds."""
    for name in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        value = schema.get(name, 0)
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**31
        if not number or value != int(value):
            raise ValueError(f"{where}.{name} must be an integer of at least 0, got {value!r:.80}")
        schema |= {name: int(value)} if name in schema else {}
    for name in ("minimum", "maximum"):  # in drafts before 6, a flag excludes the bound itself
        excluded = f"exclusive{name.title()}"
        if isinstance(flag := schema.get(excluded), bool):
            del schema[excluded]
            if flag and name in schema:
                schema[excluded] = schema.pop(name)
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        value = schema.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or (name == "multipleOf" and value <= 0):
            raise ValueError(f"{where}.{name} must be a number{' above 0' * (name[1] == 'u')}, got {value!r:.80}")
        sign = -1 if name.lower().endswith("minimum") else 1 if name.lower().endswith("maximum") else 0
        if sign * value > _FARTHEST:
            schema[name] = sign * _FARTHEST


def _inside(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the subschemas of a schema and their places in it."""
    # Definitions are checked where a reference leads to them.
    for name in sorted({"properties", "patternProperties"} & set(schema)):
        yield from ((f"{name}.{key}", part) for key, part in schema[name].items())
    for name in (*_SCHEMAS, *_SCHEMA_LISTS):
        if isinstance(schema.get(name), list) and name in ("items", *_SCHEMA_LISTS):
            yield from ((f"{name}[{index}]", part) for index, part in enumerate(schema[name]))
        elif name in schema:
            yield name, schema[name]


def _check_ends(schema: dict[str, Any]) -> None:
    """Raises `ValueError` if what a reference leads to requires itself, since its texts would never end."""
    names, ending = references(schema), set[str]()
    count = -1
    while len(ending) > count:
        count = len(ending)
        for name in sorted(names - ending, reverse=True):  # those that others need often come last
            if _ends(referred(name, schema), ending):
                ending.add(name)
    if endless := sorted(names - ending):
        raise ValueError(f"the schema requires {endless[0]} within itself, so no text can end; make it optional")


def _ends(schema: Any, ending: set[str], shapes: frozenset[str] = _SHAPES) -> bool:
    """Returns whether a text of a schema can end, if those of the references in `ending` can.

    `shapes` are those that the schemas around it allow, of object, array and scalar. Where no type is named, whoever
    writes properties means objects, and whoever writes items arrays.
    """
    if not isinstance(schema, dict):
        return True
    together = schema.get("allOf", ())
    shapes = frozenset.intersection(shapes, *map(_shapes, (schema, *together)))
    size, tuples = schema.get("minItems", 0), schema.get("prefixItems", [])
    parts: dict[str, list[Any]] = {"scalar": [], "object": _required(schema)}
    parts["array"] = [*tuples[:size], *([schema.get("items")] if size > len(tuples) else [])]
    return (
        ("$ref" not in schema or schema["$ref"] in ending)
        and (all if shapes in (_SHAPES, set()) else any)(
            [all(_ends(one, ending) for one in parts[shape]) for shape in shapes]
        )
        and all(_ends(one, ending, shapes) for one in together)
        and all(any(_ends(one, ending, shapes) for one in schema[key]) for key in ("anyOf", "oneOf") if schema.get(key))
    )


def _shapes(schema: Any) -> frozenset[str]:
    """Returns which of object, array and scalar a schema's type allows."""
    kinds = schema.get("type", TYPES) if isinstance(schema, dict) else TYPES
    return frozenset(one if one in _SHAPES else "scalar" for one in ([kinds] if isinstance(kinds, str) else kinds))


def _required(schema: dict[str, Any]) -> list[Any]:
    """Returns schemas that the properties of an object with the fewest properties have."""
    own, patterned = schema.get("properties") or {}, schema.get("patternProperties") or {}
    rest = schema.get("additionalProperties")
    required = schema.get("required", ())
    named = [own[name] for name in required if name in own]
    # Whether a pattern matches a name is for the library to say; one alone leaves no choice.
    others = [*patterned.values(), *([rest] if isinstance(rest, dict | bool) and rest is not False else [])]
    if len(others) == 1 and (set(required) - set(own) or schema.get("minProperties", 0) > len(own)):
        named += others
    return named


def _size(schema: Any, root: dict[str, Any], above: tuple[str, ...], known: dict[str, float | int]) -> float | int:
    """Returns about how many parts the regular expression has, infinity if it is too large for a table.

    `known` holds those of references.
    """
    if not isinstance(schema, dict):
        return 1
    if (name := schema.get("$ref")) is not None:
        if name not in known:
            found = referred(name, root)
            known[name] = math.inf if name in above else _size(found, root, (*above, name), known)
        return known[name]
    if any(schema.get(key, 0) > MOST_STATES for key in ("minLength", "maxLength", "minItems", "maxItems")):
        return math.inf
    size = functools.partial(_size, root=root, above=above, known=known)
    properties = (schema.get("properties") or {}).values()
    # Without a required property, any of them may be the first.
    times = 1 if schema.get("required") else len(properties)
    return (
        len(schema.get("enum", "1"))
        + times * sum(map(size, properties))
        + 2 * size(schema.get("items"))
        + sum(map(size, schema.get("anyOf", ())))
    )


def _covered(schema: Any, root: dict[str, Any], above: tuple[str, ...]) -> bool:
    """Returns whether the regular expression enforces the whole schema; `above` lists its enclosing references."""
    if not isinstance(schema, dict) or set(schema) - _HELD - _SILENT:
        return False
    # Sizes that exclude each other, in a part that a text may lack: the expression follows the first of them.
    if any(schema.get(f"min{what}", 0) > schema.get(f"max{what}", math.inf) for what in ("Items", "Length")):
        return False
    # With one of these keywords, the expression ignores the others.
    decides = next((name for name in ("$ref", "enum", "const", "anyOf") if name in schema), None)
    if decides is not None and set(schema) - _SILENT - {decides, "type", "$defs", "definitions"}:
        return False
    if "$ref" in schema:
        if "type" in schema:
            return False
        name, found = schema["$ref"], referred(schema["$ref"], root)
        return found is not None and name not in above and _covered(found, root, (*above, name))
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return all(isinstance(value, _SCALARS) and _plain(value) and _is_of(value, schema) for value in values)
    if "anyOf" in schema:
        return "type" not in schema and all(_covered(one, root, above) for one in schema["anyOf"])
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not kinds or (len(kinds) > 1 and {"array", "object"} & set(kinds)):
        return False
    if "pattern" in schema and (kinds != ("string",) or {"minLength", "maxLength"} & set(schema)):
        return False  # the expression follows one of them
    if "pattern" in schema and unescaped(schema["pattern"]) is None:
        return False
    if "object" in kinds:
        return _covered_object(schema, root, above)
    return "array" not in kinds or ("items" in schema and _covered(schema["items"], root, above))


def _covered_object(schema: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> bool:
    properties = schema.get("properties") or {}
    if not properties or schema.get("additionalProperties") is not False:
        return False
    if set(schema.get("required", ())) - set(properties) or not all(map(_plain, properties)):
        return False
    return all(_covered(value, root, above) for value in properties.values())


def _is_of(value: Any, schema: dict[str, Any]) -> bool:
    """Returns whether a value has the schema's type, if it names one."""
    kinds = schema.get("type")
    if kinds is None:
        return True
    own = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}[type(value)]
    listed = [kinds] if isinstance(kinds, str) else kinds
    return own in listed or (own == "integer" and "number" in listed)


def _plain(value: Any) -> bool:
    """Returns whether both libraries write a scalar in one way: a string without escapes, a number without exponent."""
    if isinstance(value, float):
        return not value.is_integer() and "e" not in repr(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or json.dumps(value, ensure_ascii=False)[1:-1] == value
