"""Reads JSON schemas, and finds those that a regular expression covers whole."""

import json
from typing import Any

from jaxspec.grammar.extra import needed

# Keywords that the regular expression holds to, or that say nothing of a text. Others would be passed over there.
_HELD = {"type", "properties", "required", "items", "enum", "const", "anyOf", "minLength", "maxLength", "minItems"}
_HELD |= {"maxItems", "additionalProperties", "$ref", "$defs", "definitions"}
_SILENT = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_SCALARS = (str, int, float, bool, type(None))
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
    _check(schema, "schema")
    return schema


def pattern(schema: dict[str, Any]) -> str | None:
    """Returns a regular expression for a schema's JSON; `None` where it would not hold to all of it.

    Between two elements there is nothing, as in `json.dumps(..., separators=(",", ":"))`: a choice there would be one
    more token that cannot be foreseen.
    """
    if not _covered(schema, schema, ()):
        return None
    build = needed("outlines_core.json_schema").build_regex_from_schema
    try:
        return build(json.dumps(schema), "")
    except (TypeError, ValueError):
        return None


def _check(schema: Any, where: str) -> None:
    """Raises `ValueError` for what no text can meet, by its place."""
    if schema is False:
        raise ValueError(f"{where} is false, which no text can meet")
    if not isinstance(schema, dict):
        return
    if schema.get("enum") == []:
        raise ValueError(f"{where}.enum is empty, so that no text can meet it; list at least one value")
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _TYPES:
            raise ValueError(f"{where}.type is {kind!r}, expected one of {', '.join(sorted(_TYPES))}")
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        if low in schema and high in schema and schema[low] > schema[high]:
            raise ValueError(f"{where} has {low}={schema[low]} above {high}={schema[high]}: no text can meet it")
    for name, value in (schema.get("properties") or {}).items():
        if name in schema.get("required", ()):
            _check(value, f"{where}.properties.{name}")
    if isinstance(schema.get("items"), dict) and schema.get("minItems", 0) > 0:
        _check(schema["items"], f"{where}.items")


def _covered(schema: Any, root: dict[str, Any], above: tuple[str, ...]) -> bool:
    """Returns whether the regular expression holds to all of a schema; `above` are references that it is part of."""
    if not isinstance(schema, dict) or set(schema) - _HELD - _SILENT:
        return False
    if "$ref" in schema:
        name, found = schema["$ref"], _referred(schema["$ref"], root)
        return found is not None and name not in above and _covered(found, root, (*above, name))
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return all(isinstance(value, _SCALARS) and _plain(value) for value in values)
    if "anyOf" in schema:
        return all(_covered(one, root, above) for one in schema["anyOf"])
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


def _plain(value: Any) -> bool:
    """Returns whether JSON writes a string as it is."""
    return not isinstance(value, str) or json.dumps(value, ensure_ascii=False)[1:-1] == value


def _referred(name: str, root: dict[str, Any]) -> Any:
    """Returns what a local reference names; `None` if there is nothing."""
    if not name.startswith("#/"):
        return None
    found: Any = root
    for part in name[2:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found
