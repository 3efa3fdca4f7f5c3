"""Rewrites a JSON schema into the form that grammars are made of: closed objects, checked patterns, no annotations.

An object has the properties that the schema names and no others, unless `additionalProperties` allows them: a model
that may add properties seldom ends. Schemas that apply to the same object (`allOf`, and `$ref` or `anyOf` next to
`properties`) close it together.
"""

import dataclasses
import itertools
import json
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

from jaxspec.grammar import multiples
from jaxspec.grammar.dialect import NO_ESCAPE, conjuncts, is_unwritten, problem_of, read_by_library, translated
from jaxspec.grammar.formats import AS_CHOICES, AS_PATTERNS, FORMATS, KNOWN
from jaxspec.grammar.property_names import NotFollowedError, names_of, properties_of
from jaxspec.grammar.references import referred
from jaxspec.grammar.schema import TYPES, with_bounded_numbers, without_idle

# The keywords that constrain a value. All others are annotations, except for those below.
_KEPT = {"type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "anyOf"}
_KEPT |= {"oneOf", "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems", "minLength"}
_KEPT |= {"maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
# Those that no grammar follows, and what to write instead.
_UNSUPPORTED = {
    "uniqueItems": "leave it out (pydantic: a list instead of a set), and drop repeated items from the result",
    "not": "say what is allowed, with type, enum or pattern",
    "contains": "write items or prefixItems",
    "unevaluatedItems": "write items",
    "$dynamicRef": "write $ref",
    "$recursiveRef": "write $ref",
} | dict.fromkeys(("if", "dependentRequired", "dependentSchemas", "dependencies"), "write the cases as anyOf")
# What choices say about a value that others describe too.
_SHARED = ("properties", "patternProperties", "items", "multipleOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Those that tell values apart without looking at properties.
_BOUNDING = (*_BOUNDS, "type", "pattern", "minLength", "maxLength", "minItems", "maxItems")
_UNWRITTEN = re.compile(f"[{NO_ESCAPE}\ud800-\udfff]")


# What the library's messages mean; others are shown.
_REASONS = {
    "not disjoint": "two patterns of patternProperties match the same name; write patterns that exclude each other",
    "min/maxProperties only": "minProperties and maxProperties need all named properties required; leave them out",
    "Regex is empty": "its values, patterns, formats and lengths exclude each other",
    "stack level": "its references lead to each other in one place; write one of them out",
}
# The least number above 0, as numbers with bounds have no exponent, and the least relative difference of others: the
# library rounds their last digits.
_LEAST, _STEP = 1e-15, 1e-14


# The types of JSON values, by those of Python.
_KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_KINDS |= {list: "array", dict: "object"}


class UnsupportedError(ValueError):
    """Reports a part of a schema that no grammar follows."""


@dataclasses.dataclass(frozen=True)
class _Around:
    """Holds what schemas say about the same object from outside a part.

    Attributes:
      names: the properties that they name.
      patterns: the patterns of properties that they name.
      open: whether they allow all other properties too.
      closed: whether one has `properties`, though it may name none.
      strict: whether properties that are only required are excluded, as `unevaluatedProperties: false` says.
      multiples: those of them that name a multiple, or have parts that may.
    """

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    open: bool = False
    closed: bool = False
    strict: bool = False
    multiples: tuple[dict[str, Any], ...] = ()


_NOTHING = _Around()


def normalized(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of the same values, but without properties and items that it does not name.

    Warns of formats and choices that the result leaves out.

    Raises:
      ValueError: a part cannot be followed by a grammar, or a reference leads nowhere; the message names the place.
    """
    reader = _Reader(schema)
    try:
        found = reader.whole()
        found |= {key: schema[key] for key in ("x-guidance",) if key in schema}
        if problem_of(with_bounded_numbers(found)):
            raise reader.error(found)
        defined = {key: found[key] for key in ("$defs",) if key in found}
        for where, part in reader.parts:
            joined = any("multipleOf" in one for one in (part, *part.get("allOf", ())))
            if joined and is_unwritten(part | defined):
                raise UnsupportedError(f"{where} allows no text: no multiple is written within its bounds; write enum")
    except RecursionError:
        raise ValueError(
            "schema is nested too deeply, or refers to itself without a property or item between"
        ) from None
    for note in reader.notes:
        warnings.warn(note, stacklevel=3)
    return found


class _Reader:
    """Rewrites the parts of one schema.

    Attributes:
      numbers: the name in the result of each reference in use.
      notes: what the result leaves out.
      parts: each part's place and result, inner ones first.
    """

    def __init__(self, root: dict[str, Any]):
        self._root = root
        self.parts: list[tuple[str, dict[str, Any]]] = []
        self.numbers: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self._joined: set[str] = set()

    def whole(self) -> dict[str, Any]:
        """Returns the schema rewritten, with the definitions in use."""
        found, definitions = self.closed(self._root, "schema"), {}
        if found is False:
            raise ValueError("schema is false, which no text can satisfy")
        while len(definitions) < len(self.numbers):
            name = list(self.numbers)[len(definitions)]
            place = "schema" + name[1:].replace("/", ".")
            definitions[self.numbers[name]] = self.closed(self.target(name, place), place)
        return found | ({"$defs": definitions} if definitions else {})

    def closed(self, schema: Any, where: str, around: _Around = _NOTHING) -> Any:
        """Returns a part rewritten, closed together with what is around it."""
        found = self._together(schema, where)
        if len(found) > 1 or (found and around != _NOTHING):
            found = self._inlined(schema, where)
        if False in found:
            return False
        if len(found) == 1 and "$ref" in found[0]:
            self.target(found[0]["$ref"], where)
            return {"$ref": f"#/$defs/{self.numbers.setdefault(found[0]['$ref'], str(len(self.numbers)))}"}
        if problem := multiples.problem_of([*around.multiples, *found], where, self._inlined, self._joined):
            raise UnsupportedError(problem)
        unions = [one[key] for one in found for key in ("anyOf", "oneOf") if key in one]
        if isinstance(schema, dict) and schema.get("unevaluatedProperties") is False:
            around = dataclasses.replace(around, strict=True)
        here = self._around(found, around)
        # Several choices apply to the same object: each has to leave room for the properties of the others.
        below = here if len(unions) < 2 else self._around(self._branches(unions, where), here)
        if any("pattern" in one for one in found):  # which says what an unknown format means, as zod writes them
            found = [{key: one[key] for key in one if key != "format" or one[key] in KNOWN} for one in found]
        parts = [self._rewritten(one, where, below) for one in found]
        result: dict[str, Any] = parts[0] if len(parts) == 1 else {"allOf": parts} if parts else {}
        named = here.names or here.patterns or here.closed
        # A part that is closed already allows nothing that only others name.
        ends = len(found) == 1 and found[0].get("additionalProperties") is False
        if named and not (here.open or unions or ends):
            properties, patterns = result.get("properties", {}), result.get("patternProperties", {})
            result["properties"] = properties | {name: True for name in here.names if name not in properties}
            added = {self._pattern(one, where) for one in here.patterns} - set(patterns)
            result |= {"patternProperties": patterns | dict.fromkeys(sorted(added), True)} if added else {}
            result["additionalProperties"] = False
        tuple_ends = "prefixItems" in result and not {"items", "maxItems"} & set(result)
        if tuple_ends and result.get("minItems", 0) <= len(result["prefixItems"]):
            result["items"] = False
        self.parts.append((where, result))
        return result

    def error(self, whole: dict[str, Any]) -> UnsupportedError:
        """Returns the error of the innermost part that the library does not follow."""
        # That of the whole schema comes before those of its definitions.
        parts = [*(one for one in self.parts if one[0] != "schema"), ("schema", whole)]
        for where, part in parts:
            part = part | {key: whole[key] for key in ("$defs",) if key in whole}
            if problem := problem_of(with_bounded_numbers(part)):
                said = problem.split("\n")[0].split("JSON schema: ")[-1].split("Unsatisfiable schema: ")[-1]
                reason = next((reason for words, reason in _REASONS.items() if words in problem), said)
                what = "allows no text" if "Unsatisfiable" in problem else "cannot be followed by a grammar"
                return UnsupportedError(f"{where} {what}: {reason}")
        raise AssertionError("one part is the whole schema")

    def target(self, name: Any, where: str) -> Any:
        """Returns what a reference leads to.

        Raises:
          ValueError: it leads nowhere.
        """
        found = referred(name, self._root) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"{where}.$ref is {name!r:.80}, which this schema does not define; pass one that does")
        return found

    def _together(self, schema: Any, where: str, *, inner: bool = False) -> list[Any]:
        """Returns the schemas that all apply here, without annotations: its own, a reference, and those of `allOf`."""
        if not isinstance(schema, dict):
            return [] if schema is True else [schema]
        if schema.get("not") is True or schema.get("not") == {}:  # as zod writes what is never there
            return [False]
        own = {key: value for key, value in schema.items() if key in _KEPT}
        own |= self._property_names(schema, where)
        for keyword, instead in _UNSUPPORTED.items():
            if keyword in schema and not _is_void(schema, keyword):
                raise UnsupportedError(f"{where}.{keyword} cannot be followed by a grammar; {instead}")
        _check_values(own, where)
        if "unevaluatedProperties" in schema:
            if (
                not inner
                and schema["unevaluatedProperties"] is False
                and {"$ref", "allOf", "anyOf", "oneOf"} & set(schema)
            ):
                own.setdefault("properties", {})  # closed together with these, as named properties are
            else:
                own.setdefault("additionalProperties", schema["unevaluatedProperties"])
        if isinstance(own.get("items"), list):  # as in drafts before 2020-12
            own["prefixItems"] = own.pop("items")
            own |= {"items": schema["additionalItems"]} if "additionalItems" in schema else {}
        own = without_idle(own)
        found: list[Any] = []
        # In their order, which is the order of the properties in the text.
        order = [key if key in ("$ref", "allOf") else "" for key in schema if key in {"$ref", "allOf", *own}]
        for key in dict.fromkeys([*order, ""]):
            if key == "allOf":
                for index, one in enumerate(schema["allOf"]):
                    found += self._together(one, f"{where}.allOf[{index}]", inner=True)
            else:
                found += [{"$ref": schema["$ref"]}] if key else [own] if own else []
        return found

    def _inlined(self, schema: Any, where: str, above: tuple[str, ...] = (), seen: set[str] | None = None) -> list[Any]:
        """Returns the schemas that all apply here, with those that references lead to, each once."""
        found: list[Any] = []
        seen = set() if seen is None else seen
        for one in self._together(schema, where, inner=bool(above)):
            if isinstance(one, dict) and "$ref" in one:
                if one["$ref"] in above:
                    raise ValueError(f"{where}.$ref leads to itself, by {one['$ref']}; leave it out")
                if one["$ref"] not in seen:
                    seen.add(one["$ref"])
                    found += self._inlined(self.target(one["$ref"], where), where, (*above, one["$ref"]), seen)
            else:
                found.append(one)
        return found

    def _property_names(self, schema: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns `propertyNames` as properties or as a pattern of them."""
        inlined = lambda one: self._inlined(one, f"{where}.propertyNames")  # noqa: E731
        try:
            return properties_of(schema, names_of(inlined(schema.get("propertyNames", True)), inlined))
        except NotFollowedError as error:
            raise UnsupportedError(
                f"{where}.propertyNames cannot be followed by a grammar: {error}; write the names as properties or "
                "patternProperties"
            ) from None

    def _around(self, found: list[Any], around: _Around) -> _Around:
        """Returns what schemas that apply together, and those around them, say about their object."""
        keys = ("properties",) if around.strict else ("properties", "required")
        names = [name for one in found for key in keys for name in one.get(key, ())]
        patterns = [name for one in found for name in one.get("patternProperties", ())]
        allowed = around.open or any(one.get("additionalProperties", False) is not False for one in found)
        return _Around(
            tuple(dict.fromkeys((*names, *around.names))),
            tuple(dict.fromkeys((*patterns, *around.patterns))),
            allowed,
            around.closed or any("properties" in one for one in found),
            around.strict,
            (*around.multiples, *(one for one in found if {"multipleOf", "properties", "items"} & set(one))),
        )

    def _branches(self, unions: list[Any], where: str) -> list[dict[str, Any]]:
        """Returns the properties that choices name, those of choices in them included."""
        found = [one for union in unions for branch in union for one in self._inlined(branch, where)]
        found = [one for one in found if isinstance(one, dict)]
        inner = [one[key] for one in found for key in ("anyOf", "oneOf") if key in one]
        kept = [{key: one[key] for key in _SHARED if key in one} for one in found]
        return kept + (self._branches(inner, where) if inner else [])

    def _rewritten(self, schema: dict[str, Any], where: str, below: _Around) -> dict[str, Any]:
        """Returns a schema with its parts rewritten."""
        found = _without_edges(schema)
        if "properties" in found:
            found["properties"] = {
                key: self.closed(value, f"{where}.properties.{key}") for key, value in found["properties"].items()
            }
        if "patternProperties" in found:
            found["patternProperties"] = {
                self._pattern(key, where): self.closed(value, f"{where}.patternProperties.{key}")
                for key, value in found["patternProperties"].items()
            }
        for key in ("items", "additionalProperties"):
            if key in found:
                found[key] = self.closed(found[key], f"{where}.{key}")
        if "prefixItems" in found:
            found["prefixItems"] = [
                self.closed(one, f"{where}.prefixItems[{index}]") for index, one in enumerate(found["prefixItems"])
            ]
        if "anyOf" in found:
            found["anyOf"] = self._choices(found["anyOf"], f"{where}.anyOf", below)
        if "oneOf" in found:
            choices = found.pop("oneOf")
            objects = _kinds(found) == {"object"}
            rewritten = [self.closed(one, f"{where}.oneOf[{index}]", below) for index, one in enumerate(choices)]
            inlined = [self._inlined(one, where) for one in choices]
            for (first, one), (second, other) in itertools.combinations(enumerate(choices), 2):
                if not self._exclude(inlined[first], inlined[second], where) and not (
                    self._lacks(one, other, where, below, objects) and self._lacks(other, one, where, below, objects)
                ):
                    raise UnsupportedError(
                        f"{where}.oneOf has choices that may hold together, {first} and {second}; write anyOf, or give "
                        "each another type, bounds that exclude each other, or a required property with another const"
                    )
            # Where one holds, no other does.
            found = self._string(found, where)
            if "anyOf" in found:
                return found | {"allOf": [{"anyOf": rewritten}, *found.get("allOf", ())]}
            return found | {"anyOf": rewritten}
        return self._string(found, where)

    def _choices(self, choices: list[Any], where: str, below: _Around) -> list[Any]:
        """Returns choices rewritten, without those that no grammar follows if others remain."""
        found, problems = [], []
        for index, one in enumerate(choices):
            try:
                found.append(self.closed(one, f"{where}[{index}]", below))
            except UnsupportedError as error:
                problems.append(error)
        if problems and not found:
            raise problems[0]
        self.notes |= {f"a choice is left out: {problem}": None for problem in problems}
        return found

    def _string(self, found: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns a schema with `pattern` and `format` as `llguidance` follows them."""
        patterns = [found.pop("pattern")] if "pattern" in found else []
        form, kinds = found.pop("format", None), _kinds(found)
        extra: list[Any] = []
        if form in FORMATS:
            found["format"] = form
        elif form in AS_PATTERNS:
            patterns.append(AS_PATTERNS[form])
        elif form in AS_CHOICES:
            extra.append({"anyOf": AS_CHOICES[form]})
        elif form is not None and "string" in kinds:
            self.notes[f"format {form!r:.40} constrains no text here; write a pattern if it has to"] = None
        patterns = [part for one in patterns for part in self._patterns(one, where)]
        extra += [{"pattern": one} for one in patterns[1:]]
        found |= {"pattern": patterns[0]} if patterns else {}
        return found | {"allOf": extra} if extra else found

    def _pattern(self, pattern: str, where: str) -> str:
        """Returns a pattern of names."""
        return self._patterns(pattern, where, [pattern])[0]

    def _patterns(self, pattern: str, where: str, parts: list[str] | None = None) -> list[str]:
        """Returns the patterns that together are a pattern of strings."""
        try:
            return [translated(one) for one in parts or conjuncts(pattern)]
        except ValueError as error:
            raise UnsupportedError(
                f"{where} has the pattern {pattern!r:.80}, which no grammar can follow: {error}; write another, or enum"
            ) from None

    def _exclusive(self, one: Any, other: Any, where: str) -> bool:
        """Returns whether it is certain that no value meets two schemas."""
        return self._exclude(self._inlined(one, where), self._inlined(other, where), where)

    def _exclude(self, ones: list[Any], others: list[Any], where: str) -> bool:
        """Returns whether it is certain that no value meets all schemas of both lists."""
        if any(self._differ(first, second, where) for first in ones for second in others):
            return True
        return "nsatisfiable" in problem_of({"allOf": [self._bounds(part, where) for part in (*ones, *others)]})

    def _bounds(self, schema: Any, where: str) -> Any:
        """Returns the bounds, patterns and listed scalars of a schema, which allow its values and maybe others."""
        if not isinstance(schema, dict):
            return schema
        found = {key: schema[key] for key in _BOUNDING if key in schema}
        if {"enum", "const"} & set(schema) and not any(isinstance(one, list | dict) for one in _listed(schema)):
            found["enum"] = _listed(schema)
        if "items" in schema:
            found["items"] = self._bounds(schema["items"], where)
        if "prefixItems" in schema:
            found["prefixItems"] = [self._bounds(one, where) for one in schema["prefixItems"]]
        return self._string(_without_edges(found), where)

    def _lacks(self, one: Any, other: Any, where: str, below: _Around, objects: bool) -> bool:
        """Returns whether a choice, closed, has no room for a property that another requires."""
        found = [part for part in self._inlined(one, where) if isinstance(part, dict)]
        here = self._around(found, below)
        if here.open or here.patterns or any({"anyOf", "oneOf"} & set(part) for part in found):
            return False
        required = {name for part in self._inlined(other, where) if part for name in part.get("required", ())}
        return bool(required - set(here.names)) and (objects or any(_kinds(part) == {"object"} for part in found))

    def _differ(self, one: Any, other: Any, where: str) -> bool:
        if one is False or other is False:
            return True
        values = [_values(schema) for schema in (one, other)]
        if values[0] is not None and values[1] is not None:
            return not values[0] & values[1]
        if not _kinds(one) & _kinds(other):
            return True
        if not _kinds(one) == _kinds(other) == {"object"}:
            return False
        shared = set(one.get("required", ())) & set(other.get("required", ()))
        first, second = one.get("properties", {}), other.get("properties", {})
        return any(self._exclusive(first.get(name, True), second.get(name, True), where) for name in shared)


def _is_void(schema: dict[str, Any], keyword: str) -> bool:
    """Returns whether a keyword is absent or excludes nothing."""
    value = schema.get(keyword)
    few = keyword == "uniqueItems" and schema.get("maxItems", 2) < 2
    no_case = keyword == "if" and not {"then", "else"} & set(schema)
    empty = (value is False and keyword in ("not", "uniqueItems")) or (value == {} and keyword.startswith("depend"))
    any_number = keyword == "contains" and schema.get("minContains") == 0 and "maxContains" not in schema
    return value is None or few or no_case or empty or any_number


def _without_edges(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without excluded bounds closer to 0: the library may allow them if they are whole numbers."""
    found = dict(schema)
    for key, bound, to, closer in (("Minimum", "minimum", 1, max), ("Maximum", "maximum", -1, min)):
        edge = found.get(f"exclusive{key}")
        if edge is not None and edge * to >= 0 and float(edge).is_integer() and "number" in _kinds(found):
            near = edge + to * (abs(edge) * _STEP or _LEAST)
            found[bound] = closer(near, found.get(bound, near))
            del found[f"exclusive{key}"]
    return found


def _check_values(schema: dict[str, Any], where: str) -> None:
    """Raises `UnsupportedError` for a listed string that no text has, or a number that the host would round."""
    names = [*schema.get("properties", ()), *schema.get("required", ())]
    for one in _leaves([names, *(schema.get(key) for key in ("enum", "const", *_BOUNDS))]):
        if isinstance(one, str) and _UNWRITTEN.search(one):
            raise UnsupportedError(
                f"{where} lists {one!r:.80}, with a control character or surrogate that no text has; leave it out"
            )
        large = isinstance(one, int) and (abs(one) > 2**1023 or int(float(one)) != one)
        if large or (isinstance(one, float) and not math.isfinite(one)):
            raise UnsupportedError(f"{where} has the number {one!r:.80}, which no double holds; write it as a string")
    for one in _leaves([schema.get(key) for key in ("enum", "const")]):
        if isinstance(one, float) and read_by_library(one) != one:
            raise UnsupportedError(
                f"{where} lists {one!r}, whose last digit the library rounds; write at most 15 digits, or a string"
            )


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the scalars in a value, and the names."""
    if not isinstance(value, dict | list):
        yield value
        return
    for one in [*value, *value.values()] if isinstance(value, dict) else value:
        yield from _leaves(one)


def _kinds(schema: dict[str, Any]) -> set[str]:
    """Returns the types of the values that a schema may allow."""
    if "enum" in schema or "const" in schema:
        return {_KINDS[type(one)] for one in _listed(schema)}
    kinds = schema.get("type", TYPES)
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    return kinds | ({"integer"} if "number" in kinds else set())


def _listed(schema: dict[str, Any]) -> list[Any]:
    """Returns the values that a schema lists; 1 and 1.0 are equal in JSON schemas."""
    return _whole(schema["enum"] if "enum" in schema else [schema["const"]])


def _whole(value: Any) -> Any:
    """Returns a value with integers instead of floats that are integers."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _values(schema: dict[str, Any]) -> set[str] | None:
    """Returns the values that a schema lists, as JSON; `None` if it lists none."""
    if "enum" not in schema and "const" not in schema:
        return None
    return {json.dumps(one, sort_keys=True) for one in _listed(schema)}
