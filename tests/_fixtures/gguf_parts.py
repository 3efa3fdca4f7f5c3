"""Takes a GGUF file apart and puts it together again, so that each part can be corrupted."""

import dataclasses
import random
import struct
from typing import Any

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _UINT32, _INT32, _FLOAT = 8, 9, 4, 5, 6
_COUNTS = (0, 1, 2**31, 2**32, 2**48, 2**60, 2**63, 2**64 - 1)
_NUMBERS = (0, 1, 2**31, 2**32 - 1, 10**9, 4 * 10**9)
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e38)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A key and its value, as bytes."""

    key: bytes
    kind: int
    value: bytes


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table of tensors."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int
    dimensions: int | None = None  # if another number than that of `shape` is written


@dataclasses.dataclass(frozen=True)
class Parts:
    """A whole file: the counts are written as they are."""

    version: int
    tensor_count: int
    pair_count: int
    pairs: tuple[Pair, ...]
    entries: tuple[Entry, ...]
    data: bytes

    def to_bytes(self) -> bytes:
        """Puts the file together."""
        raw = b"GGUF" + struct.pack("<IQQ", self.version, self.tensor_count, self.pair_count)
        for pair in self.pairs:
            raw += _text(pair.key) + struct.pack("<I", pair.kind) + pair.value
        for entry in self.entries:
            count = len(entry.shape) if entry.dimensions is None else entry.dimensions
            raw += _text(entry.name) + struct.pack(f"<I{len(entry.shape)}Q", count, *entry.shape)
            raw += struct.pack("<IQ", entry.kind, entry.offset)
        return raw + bytes(-len(raw) % 32) + self.data


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


class _Reader:
    def __init__(self, raw: bytes):
        self.raw, self.at = raw, 4

    def take(self, code: str) -> Any:
        values = struct.unpack_from("<" + code, self.raw, self.at)
        self.at += struct.calcsize("<" + code)
        return values[0] if len(values) == 1 else values

    def text(self) -> bytes:
        count = self.take("Q")
        if self.at + count > len(self.raw):
            raise ValueError("beyond the end")
        self.at += count
        return self.raw[self.at - count : self.at]

    def skip(self, kind: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            item, count = self.take("IQ")
            if item in _SIZES:
                self.at += count * _SIZES[item]
            for _ in range(0 if item in _SIZES else min(count, len(self.raw))):
                self.skip(item)
        else:
            self.at += _SIZES[kind]

    def pair(self) -> Pair:
        key, kind, start = self.text(), self.take("I"), self.at
        self.skip(kind)
        return Pair(key, kind, self.raw[start : self.at])

    def entry(self) -> Entry:
        name, count = self.text(), self.take("I")
        shape = tuple(self.take("Q") for _ in range(count))
        return Entry(name, shape, *self.take("IQ"))


def parse(raw: bytes) -> Parts:
    """Takes a whole file apart."""
    reader = _Reader(raw)
    version, tensors, pairs = reader.take("IQQ")
    if max(tensors, pairs) > len(raw):
        raise ValueError("more than the file can hold")
    found = tuple(reader.pair() for _ in range(pairs)), tuple(reader.entry() for _ in range(tensors))
    return Parts(version, tensors, pairs, *found, raw[reader.at + -reader.at % 32 :])


def values_only(old: bytes, new: bytes) -> bool:
    """Whether both have the same structure, so that only values differ, or keys whose values have defaults."""
    try:
        left, right = parse(old), parse(new)
    except (KeyError, OverflowError, RecursionError, ValueError, struct.error):
        return False
    same = [pair for pair in zip(left.pairs, right.pairs, strict=False) if pair[0].key == pair[1].key]
    alike = all(a.kind == b.kind and len(a.value) == len(b.value) and _could_be(b) for a, b in same)
    return alike and left.entries == right.entries and len(left.data) == len(right.data)


def _could_be(pair: Pair, most: float = 2.0**31) -> bool:
    """Whether a number is one that a setting could have."""
    if pair.kind not in _CODES:
        return True
    if len(pair.value) != _SIZES[pair.kind]:
        return False
    value = struct.unpack("<" + _CODES[pair.kind], pair.value)[0]
    return 0 < value < most


def changed_field(name: str, content: bytes, rng: random.Random) -> tuple[Any, ...]:
    """Returns what `Damage` takes: the file with one part made wrong."""
    parts = parse(content)
    what = rng.choice(("pair", "pair", "pair", "entry", "entry", "count"))
    if what == "pair":
        at = rng.randrange(len(parts.pairs))
        old = parts.pairs[at]
        kind, pairs, may_differ = _wrong_pair(parts.pairs, at, rng)
        parts = dataclasses.replace(parts, pairs=pairs, pair_count=len(pairs))
        field = "" if kind == "key" else old.key.decode()
        return name, f"value, {kind}", parts.to_bytes(), field, (field,), may_differ
    if what == "entry":
        at = rng.randrange(len(parts.entries))
        field = parts.entries[at].name.decode()
        kind, entries = _wrong_entry(parts.entries, at, len(parts.data), rng)
        field = "" if kind == "name" else field
        parts = dataclasses.replace(parts, entries=entries, tensor_count=len(entries))
        return name, f"tensor, {kind}", parts.to_bytes(), field, (field,), False
    field, value = rng.choice(("tensor_count", "pair_count")), rng.choice(_COUNTS)
    return name, f"{field}, {value}", dataclasses.replace(parts, **{field: value}).to_bytes()


def _wrong_pair(pairs: tuple[Pair, ...], at: int, rng: random.Random) -> tuple[str, tuple[Pair, ...], bool]:
    """Returns how a pair is made wrong, all pairs, and whether the result is one that could be right."""
    old = pairs[at]
    numbers = (_UINT32, struct.pack("<I", rng.choice(_NUMBERS)))
    floats = (_FLOAT, struct.pack("<f", rng.choice(_FLOATS)))
    deep = struct.pack("<IQ", _ARRAY, 1) * 5000 + struct.pack("<IQ", 0, 0)
    count = rng.choice(_COUNTS)
    changes = {
        "number": numbers,
        "negative": (_INT32, struct.pack("<i", -3)),
        "float": floats,
        "text": (_STRING, _text(b"seven")),
        "no text": (_STRING, _text(b"\xff\xfe")),
        "flag": (7, b"\1"),
        "list": (_ARRAY, struct.pack("<IQ3I", _UINT32, 3, 1, 2, 3)),
        "list of texts": (_ARRAY, struct.pack("<IQ", _STRING, 2) + _text(b"a") + _text(b"b")),
        "deep list": (_ARRAY, deep),
        "unknown type": (rng.choice((13, 255, 2**31)), old.value),
        "other type": (rng.choice([*_SIZES, _STRING, _ARRAY]), old.value),
        "count of a list": (_ARRAY, struct.pack("<IQ", rng.choice((*_SIZES, _STRING, _ARRAY)), count)),
        "length of a text": (_STRING, struct.pack("<Q", count) + b"seven"),
    }
    kind = rng.choice((*changes, "number", "float", "delete", "duplicate", "key"))
    match kind:
        case "delete":
            return kind, pairs[:at] + pairs[at + 1 :], True
        case "duplicate":
            return kind, (*pairs, Pair(old.key, *rng.choice((numbers, floats)))), False
        case "key":
            return kind, (*pairs[:at], dataclasses.replace(old, key=b"\xff" + old.key), *pairs[at + 1 :]), True
    new = Pair(old.key, *changes[kind])
    # A number that need not be whole may as well be written as one of another type.
    same = new.kind == old.kind or (old.kind == _FLOAT and new.kind in _CODES)
    alike = (
        same
        and _could_be(new, 2.0**128 if old.kind == _FLOAT else 2.0**31)
        and kind not in ("deep list", "length of a text", "count of a list")
    )
    return kind, (*pairs[:at], new, *pairs[at + 1 :]), alike


def _wrong_entry(entries: tuple[Entry, ...], at: int, size: int, rng: random.Random) -> tuple[str, tuple[Entry, ...]]:
    old, count = entries[at], rng.choice(_COUNTS)
    others = [entry for entry in entries if entry.offset != old.offset]
    changes: dict[str, dict[str, Any]] = {
        "dimension": {"shape": (count, *old.shape[1:])},
        "another dimension": {"shape": (*old.shape, count)},
        "transposed": {"shape": (*old.shape[:-1], old.shape[-1] + 1)},
        "no dimensions": {"shape": ()},
        "count of dimensions": {"dimensions": rng.choice((0, 5, 2**31, 2**32 - 1))},
        "type": {"kind": rng.choice((2, 3, 8, 15, 24, 26, 28, 99, 2**31))},
        "offset": {"offset": rng.choice((old.offset + 1, old.offset + 32, size, size + 1, 2**63, 2**64 - 1))},
        "offset of another": {"offset": rng.choice(others).offset},
        "name": {"name": b"\xff" + old.name},
    }
    kind = rng.choice((*changes, "delete", "duplicate"))
    if kind == "delete":
        return kind, entries[:at] + entries[at + 1 :]
    if kind == "duplicate":
        return kind, (*entries, dataclasses.replace(old, offset=rng.choice(others).offset))
    return kind, (*entries[:at], dataclasses.replace(old, **changes[kind]), *entries[at + 1 :])
