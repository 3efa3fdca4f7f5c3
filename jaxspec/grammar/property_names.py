"""Reads `propertyNames`: the names that an object may have, as a list or as one expression."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.grammar.formats import AS_PATTERNS, KNOWN

_HEX = "[0-9a-fA-F]"
_BYTE, _LABEL = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# The formats of names that an expression holds.
_FORMATS = AS_PATTERNS | {
    "uuid": f"^{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
    "hostname": rf"^{_LABEL}(\.{_LABEL})*$",
    "email": rf"^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL})+$",
}
# Keywords with which names cannot be followed; those of other types exclude no string.
_REFUSED = {"oneOf"}
# Keywords whose schemas may name further properties of the same object.
_TOGETHER = {"$ref", "allOf", "anyOf", "oneOf"}
# Expressions of a length, and those that repeat one class, whose repetition may be another.
_ANY = r"[\s\S]"
_SIZE = re.compile(rf"\^{re.escape(_ANY)}\{{(\d+),(\d*)\}}\$")
_REPEATED = re.compile(r"\^(\[\^?(?:[^\]\[\\]|\\.)+\]|\\[dw]|\.)(\+|\*)\$")


class NotFollowedError(ValueError):
    """Reports names that no grammar follows."""


@dataclasses.dataclass(frozen=True)
class Names:
    """Holds the names that schemas allow, if they apply together.

    Attributes:
      listed: the names; `None` if they are not listed.
      expressions: those that a name has to match; empty if all names are allowed, or if they are listed.
    """

    listed: tuple[str, ...] | None = None
    expressions: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether all names are allowed."""
        return self.listed is None and not self.expressions

    def has(self, name: str) -> bool:
        """Returns whether a name is allowed.

        Raises:
          NotFollowedError: Python does not read an expression.
        """
        return (self.listed is None or name in self.listed) and _matches(self.expressions, name)

    def expression(self) -> str:
        """Returns one expression of the names that are not listed.

        Raises:
          NotFollowedError: there are several that hold together, and no one that holds all of them is known.
        """
        if len(self.expressions) == 1:
            return self.expressions[0]
        repeated = [one for one in map(_REPEATED.fullmatch, self.expressions) if one]
        sizes = [one for one in map(_SIZE.fullmatch, self.expressions) if one]
        if len(repeated) > 1 or len(repeated) + len(sizes) < len(self.expressions):
            raise NotFollowedError("several of its conditions hold for one name; write one, such as ^[a-z]{2,8}$")
        least = max([int(one[1]) for one in sizes] + [int(one[2] == "+") for one in repeated])
        most = min((int(one[2]) for one in sizes if one[2]), default=None)
        if most is not None and least > most:
            raise NotFollowedError("no name has such a length")
        return f"^{repeated[0][1] if repeated else _ANY}{{{least},{'' if most is None else most}}}$"


def names_of(schemas: Sequence[Any], inlined: Callable[[Any], list[Any]]) -> Names:
    """Returns the names that schemas allow, which all apply.

    Args:
      schemas: the schemas, without references.
      inlined: returns such a list for any schema.

    Raises:
      NotFollowedError: a schema has a keyword for strings that is not followed here.
    """
    listed: tuple[str, ...] | None = None
    expressions: list[str] = []
    for one in schemas:
        found = _of_one(one, inlined)
        if found.listed is not None:
            listed = tuple(name for name in found.listed if listed is None or name in listed)
        expressions += found.expressions
    if listed is None:
        return Names(None, tuple(dict.fromkeys(expressions)))
    return Names(tuple(name for name in listed if _matches(expressions, name)))


def properties_of(schema: dict[str, Any], names: Names) -> dict[str, Any]:
    """Returns the keywords of an object's properties with which they have these names, in the place of `schema`'s.

    Raises:
      NotFollowedError: no such keywords are known; the message says why.
    """
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
    named = schema.get("properties")
    is_open = schema.get("additionalProperties", False) is not False
    if names.is_any:
        return {}
    shared = named is not None and "additionalProperties" not in schema and not _TOGETHER.isdisjoint(schema)
    if shared or "patternProperties" in schema or (named is not None and is_open and names.listed is None):
        raise NotFollowedError("it is next to others that name properties")
    if named is None and names.listed is None:
        return {"patternProperties": {names.expression(): rest}, "additionalProperties": False}
    implied = () if named is None or "additionalProperties" in schema else schema.get("required", ())
    others = names.listed if names.listed is not None and (named is None or is_open) else ()
    found = dict.fromkeys(others, rest) | dict.fromkeys(implied, rest) | (named or {})
    order = dict.fromkeys([*(named or ()), *implied, *others])
    return {"properties": {name: found[name] for name in order if names.has(name)}, "additionalProperties": False}


def _of_one(schema: Any, inlined: Callable[[Any], list[Any]]) -> Names:
    if schema is False:
        return Names(())
    if refused := sorted(_REFUSED & set(schema)):
        raise NotFollowedError(f"it has {refused[0]}")
    kinds = schema.get("type", "string")
    if "string" not in ([kinds] if isinstance(kinds, str) else kinds):
        return Names(())
    expressions = [schema["pattern"]] if "pattern" in schema else []
    if "format" in schema and not (expressions and schema["format"] not in KNOWN):  # a pattern says what it means
        if schema["format"] not in _FORMATS:
            mend = "leave the format out" if expressions else "write a pattern"
            raise NotFollowedError(f"names of the format {schema['format']!r:.40} are not followed; {mend}")
        expressions.append(_FORMATS[schema["format"]])
    if schema.get("minLength") or "maxLength" in schema:
        expressions.append(f"^{_ANY}{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$")
    if "anyOf" in schema:
        choices = [names_of(inlined(one), inlined) for one in schema["anyOf"]]
        if not any(one.is_any for one in choices):
            possible = [_as_expression(one) for one in choices if one.listed != ()]
            if not possible:
                return Names(())
            expressions.append("|".join(possible))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        values = [one for one in values if one == schema.get("const", one)]
        return Names(tuple(one for one in values if isinstance(one, str) and _matches(expressions, one)))
    return Names(None, tuple(expressions))


def _as_expression(names: Names) -> str:
    """Returns an expression that can stand next to others."""
    if names.listed is not None:
        return f"^(?:{'|'.join(map(re.escape, names.listed))})$"
    found = names.expression()
    if found.startswith("(?") and not found.startswith("(?:"):
        raise NotFollowedError(f"a choice has the pattern {found!r:.80}, whose beginning would hold for others")
    return found


def _matches(expressions: Sequence[str], name: str) -> bool:
    try:
        return all(re.search(one, name) for one in expressions)
    except re.error as error:
        raise NotFollowedError(f"Python does not read a pattern of it: {error}") from None
