"""Counts the instruction words of the longest path through an operation's machine code.

A forward branch skips the words up to its target. Two stretches that are skipped on opposite comparisons of the same
numbers exclude each other, and the longer one counts; any other is taken to run. Loops count once.
"""

import re
from typing import NamedTuple

_WORD = re.compile(r"\s*(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})? *:")
_BRANCH = re.compile(r"sbr\.rel \((!?)(%\w+)\) target = \$region(\d+)")
_COMPARISON = re.compile(r"(%\w+) = scmp\.(\w\w)\.\w+\.totalorder (?:\([^)]*\), )?([^\s,;]+), ([^\s,;]+)")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


class _Stretch(NamedTuple):
    """Gives the words from `first` up to `last`, and the comparison that skips them."""

    first: int
    last: int
    skipped_if: tuple[str, ...]


def longest_path(text: str) -> int:
    """Returns how many instruction words one run executes at most.

    Args:
      text: the words as libtpu writes them, one a line, with `Start region N` where branches lead.
    """
    count, regions, branches, compared = 0, {}, [], {}
    for line in text.splitlines():
        count += _WORD.match(line) is not None
        compared |= {name: (kind, *numbers) for name, kind, *numbers in _COMPARISON.findall(line)}
        regions |= {int(region): count - 1 for region in _REGION.findall(line)}
        branches += [(count - 1, *found) for found in _BRANCH.findall(line)]
    stretches = []
    for first, negated, name, target in branches:
        kind, *numbers = compared.get(name, (name,))
        kind = _OPPOSITE.get(kind, f"!{kind}") if negated else kind
        last = regions.get(int(target), first)
        stretches += [_Stretch(first, last, (kind, *numbers))] if last > first else []
    return _longest(0, count, stretches)


def _longest(first: int, last: int, stretches: list[_Stretch]) -> int:
    """Returns the longest path from one word to before another."""
    inside = [one for one in stretches if first <= one.first and one.last <= last]
    total, lengths, place = last - first, {}, first
    for one in sorted(inside, key=lambda each: (each.first, -each.last)):
        if one.first < place:
            continue  # within the stretch before
        place = one.last
        total -= one.last - one.first
        within = [each for each in inside if each != one]
        lengths[one.skipped_if] = lengths.get(one.skipped_if, 0) + _longest(one.first, one.last, within)
    while lengths:
        key, length = lengths.popitem()
        total += max(length, lengths.pop(_opposite(key), 0))
    return total


def _opposite(skipped_if: tuple[str, ...]) -> tuple[str, ...]:
    return _OPPOSITE.get(skipped_if[0], ""), *skipped_if[1:]
