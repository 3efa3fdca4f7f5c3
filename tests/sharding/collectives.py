"""What a compiled program sends between devices, read from its HLO."""

import re
from typing import NamedTuple

_LINE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast)(?:-start)?\("
)
_ARRAY = re.compile(r"([a-z]+\d+|pred)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One array that one collective yields."""

    kind: str
    dtype: str
    shape: tuple[int, ...]


def collectives(text: str) -> list[Collective]:
    """Every array that a collective of a compiled program yields."""
    found = []
    for line in text.splitlines():
        if match := _LINE.search(line):
            result, kind = match.groups()
            for dtype, sizes in _ARRAY.findall(result):
                found.append(Collective(kind, dtype, tuple(map(int, filter(None, sizes.split(","))))))
    return found
