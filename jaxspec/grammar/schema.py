"""Reads JSON schemas, and finds those that a regular expression covers whole."""

import functools
import json
import re
from typing import Any

from jaxspec.grammar.extra import needed

# Keywords that the regular expression holds to, or that say nothing of a text. Others would be passed over there.
_HELD = {"type", "properties", "required", "items", "enum", "const", "anyOf", "minLength", "maxLength", "minItems"}
_HELD |= {"maxItems", "additionalProperties", "$ref", "$defs", "definitions"}
_SILENT = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_NAMED_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions"}
_SCALARS = (str, int, float, bool, type(None))
# How the two libraries write numbers and letters differently; names and values have these signs escaped.
_AS_THE_HOST = {
    r"([eE][+-][0-9]+)?": r"([eE][+-]?[0-9]+)?",
    r"\x7F-\x9F]": r"\x7F]",
    r"""|\\["\\/bfnrt])""": r"""|\\["\\bfnrt])""",
}
# Of an integer without a bound of its own: double precision holds all of these (RFC 8259, section 6). Small models
# write digits without end.
MOST_DIGITS = 15
# In an expression; of a number a point follows.
_INTEGER = re.compile(re.escape("(0|[1-9][0-9]*)") + r"(?!\)\(\\\.)")
_TYPES = {"string", "integer", "number", "boolean", "null", "array", "object"}


def as_dict(schema: Any) -> dict[str, Any]:
    """Returns a schema as a dictionary.

    Args:
      schema: a dictionary, its JSON text, or a class with `model_json_schema()`.

    Raises:
      TypeError, ValueError: if it is none of them, or cannot be met.
    """
    given = schema
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"schema must be JSON, got {given!r:.80}: {error}") from None
    if not isinstance(schema, dict):
        raise TypeError(
            f"schema must be a dictionary, JSON, or a class with model_json_schema(), got {type(given).__name__}; pass "
            '{"type": "object", ...} or a pydantic model'
        )
    _check_kinds(schema, "schema")
    _check(schema, "schema")
    _check_ends(schema, schema, ("#",))
    return schema


def pattern(schema: dict[str, Any]) -> str | None:
    """Returns a regular expression for a schema's JSON; `None` where it would not hold to all of it.

    Of properties it has those that are named, and integers have at most `MOST_DIGITS` digits. Between two elements
    there is nothing, as in `json.dumps(..., separators=(",", ":"))`: a choice there could not be foreseen.
    """
    if not _covered(schema, schema, ()):
        return None
    build = needed("outlines_core.json_schema").build_regex_from_schema
    try:
        found = build(json.dumps(schema), "")
    except (TypeError, ValueError):
        return None
    found = _INTEGER.sub(f"(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})", found)
    return functools.reduce(lambda text, pair: text.replace(*pair), _AS_THE_HOST.items(), found)


def with_bounded_integers(schema: Any) -> Any:
    """Returns a schema with bounds where an integer has none, as in `pattern`."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in _NAMED_SCHEMAS & set(found):
        found[name] = {key: with_bounded_integers(value) for key, value in found[name].items()}
    for name in ("items", "additionalProperties"):
        if name in found:
            found[name] = with_bounded_integers(found[name])
    for name in ("anyOf", "oneOf", "prefixItems"):
        if name in found:
            found[name] = [with_bounded_integers(one) for one in found[name]]
    kinds = found.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    # Beside these another bound could leave nothing.
    if "integer" not in kinds or "number" in kinds or {"enum", "const", "allOf", "$ref"} & set(found):
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
    """Raises `ValueError` for what no text can meet, by its place."""
    if schema is False:
        raise ValueError(f"{where} is false, which no text can meet")
    if not isinstance(schema, dict):
        return
    for name in ("enum", "anyOf", "oneOf"):
        if schema.get(name) == []:
            raise ValueError(f"{where}.{name} is empty, so that no text can meet it; list at least one")
    faults = [_fault(one, f"{where}.anyOf[{index}]") for index, one in enumerate(schema.get("anyOf", ()))]
    if faults and all(faults):
        raise ValueError(faults[0])
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        if low in schema and high in schema and schema[low] > schema[high]:
            raise ValueError(f"{where} has {low}={schema[low]} above {high}={schema[high]}: no text can meet it")
    for name, value in (schema.get("properties") or {}).items():
        if name in schema.get("required", ()):
            _check(value, f"{where}.properties.{name}")
    if isinstance(schema.get("items"), dict) and schema.get("minItems", 0) > 0:
        _check(schema["items"], f"{where}.items")


def _fault(schema: Any, where: str) -> str | None:
    """Returns why no text can meet a schema; `None` if one may."""
    try:
        _check(schema, where)
    except ValueError as error:
        return str(error)
    return None


def _check_kinds(schema: Any, where: str) -> None:
    """Raises `ValueError` where a keyword is not what JSON Schema has it be, here or below."""
    if not isinstance(schema, dict):
        return
    kinds = dict.fromkeys(_NAMED_SCHEMAS, dict)
    kinds |= dict.fromkeys(("required", "enum", "anyOf", "oneOf", "allOf", "prefixItems"), list)
    for name, kind in kinds.items():
        if name in schema and not isinstance(schema[name], kind):
            expected = "an object" if kind is dict else "a list"
            raise ValueError(f"{where}.{name} must be {expected}, got {schema[name]!r:.80}")
    given = schema.get("type", [])
    for kind in given if isinstance(given, list) else [given]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValueError(f"{where}.type is {kind!r:.80}, expected one of {', '.join(sorted(_TYPES))}")
    for name in ("minLength", "maxLength", "minItems", "maxItems"):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{where}.{name} must be a number of at least 0, got {value!r:.80}")
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(name, 0), bool) or not isinstance(schema.get(name, 0), int | float):
            raise ValueError(f"{where}.{name} must be a number, got {schema[name]!r:.80}")
    for name in sorted(_NAMED_SCHEMAS):
        for key, value in schema.get(name, {}).items():
            _check_kinds(value, f"{where}.{name}.{key}")
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, value in enumerate(schema.get(name, ())):
            _check_kinds(value, f"{where}.{name}[{index}]")
    for name in ("items", "additionalProperties"):
        _check_kinds(schema.get(name), f"{where}.{name}")


def _check_ends(schema: Any, root: dict[str, Any], above: tuple[str, ...]) -> None:
    """Raises `ValueError` for a schema that requires itself: no text of it would end."""
    if not isinstance(schema, dict):
        return
    if isinstance(name := schema.get("$ref"), str):
        if name in above:
            raise ValueError(f"the schema requires {name} within itself, so that no text can end; make it optional")
        return _check_ends(_referred(name, root), root, (*above, name))
    for name in schema.get("required", ()):
        _check_ends((schema.get("properties") or {}).get(name), root, above)
    if schema.get("minItems", 0) > 0:
        _check_ends(schema.get("items"), root, above)


def _covered(schema: Any, root: dict[str, Any], above: tuple[str, ...]) -> bool:
    """Returns whether the regular expression holds to all of a schema; `above` are references that it is part of."""
    if not isinstance(schema, dict) or set(schema) - _HELD - _SILENT:
        return False
    # Of these the expression passes over all that stands beside them.
    decides = next((name for name in ("$ref", "enum", "const", "anyOf") if name in schema), None)
    if decides is not None and set(schema) - _SILENT - {decides, "type", "$defs", "definitions"}:
        return False
    if "$ref" in schema:
        if "type" in schema:
            return False
        name, found = schema["$ref"], _referred(schema["$ref"], root)
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
    if "object" in kinds:
        return _covered_object(schema, root, above)
    return "array" not in kinds or ("items" in schema and _covered(schema["items"], root, above))


def _covered_object(schema: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> bool:
    properties = schema.get("properties") or {}
    if not properties or schema.get("additionalProperties") not in (None, False):
        return False
    if set(schema.get("required", ())) - set(properties) or not all(map(_plain, properties)):
        return False
    return all(_covered(value, root, above) for value in properties.values())


def _is_of(value: Any, schema: dict[str, Any]) -> bool:
    """Returns whether a value is of the types that stand beside it, if any do."""
    kinds = schema.get("type")
    if kinds is None:
        return True
    own = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}[type(value)]
    listed = [kinds] if isinstance(kinds, str) else kinds
    return own in listed or (own == "integer" and "number" in listed)


def _plain(value: Any) -> bool:
    """Returns whether JSON writes a string as it is."""
    return not isinstance(value, str) or json.dumps(value, ensure_ascii=False)[1:-1] == value


def _referred(name: str, root: dict[str, Any]) -> Any:
    """Returns what a local reference names; `None` if there is nothing."""
    if name == "#":
        return root
    if not name.startswith("#/"):
        return None
    found: Any = root
    for part in name[2:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found
