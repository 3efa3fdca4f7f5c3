"""Damages files in ways that know their format: seeded, one fault at a time, named by where it lies.

A `Damage` says what a reader may do with it. Formats without checksums cannot tell a changed value from the right one:
where a reader may load the file and find something else, `may_differ` is true.
"""

import dataclasses
import json
import math
import random
from collections.abc import Callable
from typing import Any

from tests._fixtures import gguf_parts

DEEP = 100_000
_RAW = "\0raw\0"
# JSON that no field expects, by what is wrong with it.
_WRONG = {
    "text": '"seven"',
    "number as text": '"12"',
    "flag": "true",
    "list": "[1, 2, 3]",
    "object": '{"a": 1}',
    "NaN": "NaN",
    "infinite": "1e400",
    "negative": "-3",
    "zero": "0",
    "fraction": "2.5",
    "huge": str(2**31),
    "huger": str(2**64),
    "many digits": "9" * 5000,
    "deep": "[" * DEEP + "]" * DEEP,
    "null": "null",
    "surrogate": '"\\ud800"',
}


@dataclasses.dataclass(frozen=True)
class Damage:
    """One damaged file.

    `field` is the field that alone was changed, or empty; `names` are what an answer may call it.
    """

    file: str
    kind: str
    content: bytes
    field: str = ""
    names: tuple[str, ...] = ()
    may_differ: bool = False


def damage(name: str, content: bytes, rng: random.Random) -> Damage:
    """Damages a file of the format that its name ends in."""
    how, weights = zip(*_KINDS[name.rpartition(".")[2]], strict=True)
    while True:
        found = rng.choices(how, weights)[0](name, content, rng)
        if found.content != content:
            return found


def _bytes(name: str, content: bytes, rng: random.Random) -> Damage:
    """Changes bytes anywhere, half of the time near the beginning."""
    start = rng.randrange(min(len(content), rng.choice((64, 4096, len(content)))))
    raw, count = bytearray(content), rng.choice((1, 1, 2, 8, 64, 1000))
    kind = rng.choice(("flip", "overwrite", "zeros", "insert", "remove", "truncate", "append"))
    match kind:
        case "flip":
            raw[start] ^= 1 << rng.randrange(8)
        case "overwrite":
            raw[start : start + count] = rng.randbytes(min(count, len(raw) - start))
        case "zeros":
            raw[start : start + count] = bytes(min(count, len(raw) - start))
        case "insert":
            raw[start:start] = rng.randbytes(count)
        case "remove":
            del raw[start : start + count]
        case "truncate":
            del raw[start:]
        case "append":
            raw += rng.randbytes(count)
    new = bytes(raw)
    return Damage(name, f"bytes, {kind}", new, may_differ=_VALUES_ONLY[name.rpartition(".")[2]](content, new))


def _json_field(name: str, content: bytes, rng: random.Random) -> Damage:
    text, kind, path, legal = changed_field(json.loads(content), rng)
    return Damage(name, f"field, {kind}", text.encode(), path[-1], path, legal)


def changed_field(values: dict[str, Any], rng: random.Random) -> tuple[str, str, tuple[str, ...], bool]:
    """Returns JSON with one field changed, how, the path to it, and whether its new value is one that it could have."""
    values = json.loads(json.dumps(values))
    node, path = values, []
    while True:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        path += [key] if isinstance(node, dict) else []
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.3:
            break
        node = node[key]
    kinds = ("delete", *(("duplicate",) if isinstance(node, dict) else ()), *_WRONG)
    old, kind = node[key], rng.choice(kinds)
    if kind == "delete":
        del node[key]
        return json.dumps(values), kind, tuple(path), True
    raw = _WRONG[rng.choice(list(_WRONG))] if kind == "duplicate" else _WRONG[kind]
    likes = [old] if isinstance(node, dict) else list(node)
    legal = any(_could_be(like, _parsed(raw)) for like in likes) and kind != "duplicate"
    node[key] = _RAW
    if kind == "duplicate":
        raw = f"{json.dumps(old)}, {json.dumps(key)}: {raw}"
    return json.dumps(values).replace(json.dumps(_RAW), raw), kind, tuple(path), legal


def _parsed(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (RecursionError, ValueError):
        return ...


def _could_be(old: Any, new: Any) -> bool:
    """Whether a field that holds `old` could as well hold `new`."""
    if new is None or type(old) is type(new) is bool:
        return True
    if old is None:  # unset: what it could hold is not known
        return not isinstance(new, type(...))
    if isinstance(old, bool) or isinstance(new, bool):
        return False
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        whole = isinstance(old, float) or float(new).is_integer()
        return (
            math.isfinite(new)
            and (new >= 0 or old < 0)
            and (new > 0 or old <= 0)
            and whole
            and (isinstance(old, float) or new < 2**31)
        )
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_could_be(old[key], new[key]) for key in old if key in new)
    if isinstance(old, list) and isinstance(new, list):
        return all(any(_could_be(one, other) for one in old) for other in new) if old else True
    return type(old) is type(new)


def _json_values_only(old: bytes, new: bytes) -> bool:
    try:
        return _could_be(json.loads(old), json.loads(new))
    except (RecursionError, ValueError):
        return False


def _safetensors_parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    count = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + count]), content[8 + count :]


def _safetensors_field(name: str, content: bytes, rng: random.Random) -> Damage:
    """Changes a field of the header, and its length with it."""
    header, data = _safetensors_parts(content)
    text, kind, path, _ = changed_field(header, rng)
    raw = text.encode()
    # Metadata is free text, and a tensor that is gone may be an optional one.
    free = path[0] == "__metadata__" or (kind == "delete" and len(path) == 1)
    return Damage(name, f"header, {kind}", len(raw).to_bytes(8, "little") + raw + data, path[-1], path, free)


def _safetensors_length(name: str, content: bytes, rng: random.Random) -> Damage:
    """Changes the length of the header."""
    length = int.from_bytes(content[:8], "little")
    new = rng.choice((0, 1, length - 1, length + 1, 2 * length, len(content), 2**31, 2**40, 2**63, 2**64 - 1))
    return Damage(name, "length of the header", new.to_bytes(8, "little") + content[8:])


def _safetensors_values_only(old: bytes, new: bytes) -> bool:
    """Whether the header is the same, or says the same of all tensors that it still has."""
    try:
        header, data = _safetensors_parts(old)
        other, rest = _safetensors_parts(new)
        same = all(header.get(key) == value for key, value in other.items() if key in header)
        return same and len(data) == len(rest)
    except (AttributeError, RecursionError, ValueError):
        return False


_Kind = Callable[[str, bytes, random.Random], Damage]
_KINDS: dict[str, tuple[tuple[_Kind, int], ...]] = {
    "json": ((_bytes, 1), (_json_field, 3)),
    "safetensors": ((_bytes, 3), (_safetensors_field, 3), (_safetensors_length, 1)),
    "gguf": ((_bytes, 2), (lambda *given: Damage(*gguf_parts.changed_field(*given)), 3)),
}
_VALUES_ONLY: dict[str, Callable[[bytes, bytes], bool]] = {
    "json": _json_values_only,
    "safetensors": _safetensors_values_only,
    "gguf": gguf_parts.values_only,
}
