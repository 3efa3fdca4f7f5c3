"""Reads the arrays that a compiled program sends between devices from its HLO."""

import re
from typing import NamedTuple

import numpy as np

_LINE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast)(?:-start)?\("
)
# Groups are listed, or a permuted range cut into groups, or axes of a device mesh.
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_RANGE = re.compile(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}")
_ARRAY = re.compile(r"([a-z]+\d+|pred)\[([\d,]*)\]")


class Collective(NamedTuple):
    """Holds an array that a collective yields, and the groups of devices that exchange it."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def crosses(self, sizes: tuple[int, ...], axis: int) -> bool:
        """Returns whether devices at different positions of a mesh axis exchange it."""
        return any(len(set(np.unravel_index(group, sizes)[axis])) > 1 for group in self.groups)


def collectives(text: str) -> list[Collective]:
    """Returns every array that a collective of a compiled program yields."""
    found = []
    for line in text.splitlines():
        if match := _LINE.search(line):
            result, kind = match.groups()
            for dtype, sizes in _ARRAY.findall(result):
                found.append(Collective(kind, dtype, _numbers(sizes), _groups(line)))
    return found


def _groups(line: str) -> tuple[tuple[int, ...], ...]:
    if match := _LISTED.search(line):
        return tuple(_numbers(group) for group in match[1].strip("{}").split("},{"))
    if match := _RANGE.search(line):
        return _rows(_devices(match[2]).reshape(_numbers(match[1])))
    if match := _AXES.search(line):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        named = re.findall(r"'(\w+)'", match[3])
        assert ":" not in match[3], f"a part of an axis is not read: {line}"
        devices = _devices(match[2] or f"[{np.prod(list(sizes.values()))}]").reshape(*sizes.values())
        devices = np.moveaxis(devices, [list(sizes).index(name) for name in named], range(-len(named), 0))
        return _rows(devices.reshape(-1, int(np.prod([sizes[name] for name in named]))))
    raise ValueError(f"no groups of devices in {line}")


def _devices(text: str) -> np.ndarray:
    """Reads `[2,4]T(1,0)`: the range over a shape, its axes permuted."""
    shape, _, order = text.partition("T")
    shape = _numbers(shape.strip("[]"))
    devices = np.arange(np.prod(shape)).reshape(shape)
    return devices.transpose(_numbers(order.strip("()"))) if order else devices


def _rows(groups: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, group)) for group in groups)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))
