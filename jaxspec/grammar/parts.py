"""Composes a grammar from literal texts, JSON schemas and expressions: sequences, alternatives and repetitions.

["<call>", {"schema": {"type": "integer"}}, "</call>"]     one after another
{"any": ["yes", {"schema": {"type": "null"}}]}             one of several
{"repeat": part, "between": ", "}                          one or more, with a text between them
{"regex": "[a-z]+"}                                        a regular expression
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxspec.core.validate import shown, text as checked_text
from jaxspec.grammar import schema as schemas
from jaxspec.grammar.automaton import needed, without_anchors, without_nul
from jaxspec.grammar.dialect import JSON_TEXT
from jaxspec.grammar.normalized import normalized

_FORM = 'pass texts and objects such as {"schema": {...}}, {"any": [...]}, {"repeat": ...} or {"regex": "..."}'
_DEEPEST = 100
# The schema of the arguments of a function without any, as it is followed.
_EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def made(pieces: Sequence[Any]) -> list[Any]:
    """Returns parts with their schemas as grammars follow them.

    Raises:
      TypeError, ValueError: one is not a part, there is none, or a schema or an expression cannot be followed.
    """
    return _checked(list(pieces), lambda schema: normalized(schemas.as_dict(schema)))


def check(pieces: list[Any]) -> None:
    """Raises `TypeError` or `ValueError` unless these are what `made` returns."""
    _checked(pieces, schemas.as_dict)


def _checked(part: Any, read: Callable[[Any], dict[str, Any]], inside: int = 0) -> Any:
    """Returns a part with its schemas read, which are then known to be followed; `inside` counts those around it."""
    if inside > _DEEPEST:
        raise ValueError(f"a part of a grammar is inside of {inside} others; nest at most {_DEEPEST}")
    checked = functools.partial(_checked, read=read, inside=inside + 1)
    if isinstance(part, str):
        return checked_text("a part", part)
    if isinstance(part, list | tuple):
        if not part:
            raise ValueError("a grammar of parts needs a part, got none; pass a text, say")
        return [checked(one) for one in part]
    if not isinstance(part, dict):
        raise TypeError(f"a part of a grammar must be a text, a list or an object, got {shown(part)}; {_FORM}")
    keys = set(part)
    if keys == {"schema"}:
        schema = read(part["schema"])
        return "{}" if schema == _EMPTY else {"schema": schema}  # which the expressions of schemas do not have
    if keys == {"regex"}:
        return {"regex": without_anchors(checked_text("regex", part["regex"]))}
    if keys == {"any"} and isinstance(part["any"], list | tuple) and part["any"]:
        return {"any": [checked(one) for one in part["any"]]}
    if "repeat" in keys and keys <= {"repeat", "between"}:
        return {"repeat": checked(part["repeat"]), "between": checked_text("between", part.get("between", ""))}
    raise ValueError(f"a part of a grammar has an unknown form, got {shown(part)}; {_FORM}")


def literals(part: Any) -> str:
    """Returns the literal texts of a part, joined."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "\n".join(map(literals, part))
    inner = [part.get("any", []), part.get("repeat", []), part.get("between", "")]
    return "\n".join(map(literals, inner))


def has_schema(part: Any) -> bool:
    """Returns whether a checked part holds a schema; without one, it is a regular expression."""
    if isinstance(part, list):
        return any(map(has_schema, part))
    if isinstance(part, str) or "regex" in part:
        return False
    return "schema" in part or has_schema(part.get("any", part.get("repeat")))


def pattern(part: Any) -> str | None:
    """Returns a checked part as a regular expression; `None` if a schema in it has none."""
    if isinstance(part, str):
        return re.escape(part).replace("\\\n", "\\n")
    if isinstance(part, list):
        found = [pattern(one) for one in part]
        return None if None in found else "".join(f"({one})" for one in found if one)
    if "schema" in part:
        return schemas.pattern(part["schema"])
    if "regex" in part:
        return without_nul(part["regex"])
    if "any" in part:
        found = [pattern(one) for one in part["any"]]
        return None if None in found else "|".join(f"({one})" for one in found)
    one = pattern(part["repeat"])
    return None if one is None else f"({one})({pattern(part['between'])}({one}))*"


def rules(part: Any) -> str:
    """Returns a checked part as a grammar for `llguidance`."""
    found: list[str] = []
    start = _rule(part, found)
    return "\n".join([f"start: {start}", *found])


def _rule(part: Any, found: list[str]) -> str:
    """Returns the right side of a rule for a part; adds the rules that it needs."""
    if isinstance(part, str):
        return json.dumps(part, ensure_ascii=False) if part else '""'
    if isinstance(part, list):
        return _sequence(part, found)
    if "any" in part:
        return " | ".join(f"({_rule(one, found)})" for one in part["any"])
    if "repeat" in part:
        one = _rule(part["repeat"], found)
        return f"({one}) ({_rule(part['between'], found)} ({one}))*"
    name = f"part{len(found)}"
    if "schema" in part:
        schema = schemas.with_bounded_numbers(part["schema"])
        schema["x-guidance"] = JSON_TEXT | schema.get("x-guidance", {})
        found.append(f"{name}: %json {json.dumps(schema)}")
    else:
        found.append(f"{name}: {_expression(part['regex'])}")
    return name


def _sequence(parts: list[Any], found: list[str]) -> str:
    """Returns the right side of a rule for parts one after another.

    A text after an expression is a part of its lexeme, which ends there: the expression alone would take characters of
    the text, and not give them back.
    """
    rules, place, parts = [], 0, list(_flat(parts))
    while place < len(parts):
        one, after = parts[place], parts[place + 1] if place + 1 < len(parts) else None
        if isinstance(one, dict) and "regex" in one and isinstance(after, str) and after:
            name, regex = f"part{len(found)}", one["regex"]
            found.append(f"{name}[lazy]: {_expression(f'({regex}){pattern(after)}')}")
            rules.append(name)
            place += 2
        else:
            rules.append(_rule(one, found))
            place += 1
    return " ".join(f"({one})" for one in rules) or '""'


def _flat(parts: list[Any]) -> Iterator[Any]:
    """Yields the parts of sequences within a sequence in their places, but empty texts."""
    for one in parts:
        if isinstance(one, list):
            yield from _flat(one)
        elif one != "":
            yield one


def _expression(regex: str) -> str:
    """Returns a regular expression as `llguidance` writes it."""
    matcher = needed("llguidance").LLMatcher
    inner = json.loads(matcher.grammar_from_regex(without_nul(regex)))["grammars"][0]["lark_grammar"]
    return inner.strip().removeprefix("start:").strip()
