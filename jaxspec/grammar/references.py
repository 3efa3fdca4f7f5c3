"""Resolves the references in a JSON schema, by `$id`, `$anchor` or JSON pointer, to places in it."""

import urllib.parse
from collections.abc import Iterator
from typing import Any

# The keywords whose values map names to schemas, and those whose values are data.
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples")


def with_pointers(schema: dict[str, Any]) -> dict[str, Any]:
    """Replaces references to parts of a schema by JSON pointers from its root, in place; returns the schema."""
    places: dict[str, str] = {}
    for part, base, pointer in _parts(schema, "", "#"):
        places.setdefault(base, pointer)  # the part whose `$id` it is comes first
        for anchor in (part.get("$anchor"), part.get("$dynamicAnchor"), str(part.get("$id")).partition("#")[2]):
            if anchor and isinstance(anchor, str):
                places.setdefault(f"{base}#{anchor}", pointer)
    for part, base in [(part, base) for part, base, _ in _parts(schema, "", "#") if isinstance(part.get("$ref"), str)]:
        address, _, fragment = _joined(base, part["$ref"]).partition("#")
        named = places.get(f"{address}#{fragment}" if fragment else address)
        within = places[address] + fragment if fragment.startswith("/") and address in places else None
        part["$ref"] = named or within or part["$ref"]
    return schema


def references(root: dict[str, Any]) -> set[str]:
    """Returns the references that a schema leads to; those of unused definitions are left out."""
    found, new = set[str](), [root]
    while new:
        used = {key: value for key, value in new.pop().items() if key not in ("$defs", "definitions")}
        names = {part["$ref"] for part, _, _ in _parts(used, "", "#") if isinstance(part.get("$ref"), str)} - found
        new += [part for part in (referred(name, root) for name in sorted(names)) if isinstance(part, dict)]
        found |= names
    return found


def referred(pointer: str, root: dict[str, Any]) -> Any:
    """Resolves a JSON pointer from the root (RFC 6901); returns `None` if it leads nowhere."""
    if pointer == "#":
        return root
    if not pointer.startswith("#/"):
        return None
    found: Any = root
    for part in urllib.parse.unquote(pointer[2:]).split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(part)] if part.isdigit() and int(part) < len(found) else None
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


def _parts(value: Any, base: str, pointer: str, *, named: bool = False) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yields each object that may be a schema, with its address and its place; `named` keys are no keywords."""
    if isinstance(value, dict) and not named:
        if isinstance(value.get("$id"), str):
            base = _joined(base, value["$id"]).partition("#")[0]
        yield value, base, pointer
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if named or key not in _DATA:
            place = str(key).replace("~", "~0").replace("/", "~1").replace("%", "%25")
            yield from _parts(one, base, f"{pointer}/{place}", named=not named and key in NAMED_SCHEMAS)


def _joined(base: str, reference: str) -> str:
    """Returns the address that a reference leads to from `base`."""
    try:
        return base + reference if reference.startswith("#") else urllib.parse.urljoin(base, reference)
    except ValueError:  # no address
        return reference
