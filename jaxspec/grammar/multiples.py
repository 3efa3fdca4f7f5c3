"""Finds multiples that `llguidance` takes long to follow; it joins those of schemas that apply together."""

import fractions
import itertools
import json
import math
from collections.abc import Callable
from typing import Any, TypeAlias

# The most remainders of a division by a multiple, and the largest round one: with more, `llguidance` uses up its limits
# within an answer (of 110,017, it writes some multiples and no others), or before it.
_MOST_REMAINDERS, _LARGEST_ROUND = 90_000, 10**8
# Returns the schemas that apply where one does, given its place.
_Inlined: TypeAlias = Callable[[Any, str], list[Any]]


def takes_long(multiples: list[int | float]) -> bool:
    """Returns whether `llguidance`, which nothing interrupts, takes long to find a number that is a multiple of all.

    It tries digits until there is no remainder: seconds for a million remainders, hours for a hundred millions.
    """
    found = [fractions.Fraction(repr(one)) for one in multiples]
    scale = math.lcm(*(one.denominator for one in found))
    common = math.lcm(*(int(one * scale) for one in found))
    digits = str(common).rstrip("0")
    is_round = common <= _LARGEST_ROUND and len(digits) < 4 and 10**9 % int(digits) == 0
    return common > _MOST_REMAINDERS and not is_round


def problem_of(found: list[Any], where: str, inlined: _Inlined, seen: set[str]) -> str | None:
    """Returns why schemas that apply together take long to follow, by their multiples or those of parts they share.

    Args:
      found: the schemas.
      where: their place.
      inlined: finds the schemas that apply where a part does.
      seen: the shared parts that were looked at, which this adds to; they may refer to each other.
    """
    found = [one for one in found if isinstance(one, dict)]
    multiples = list(dict.fromkeys(one["multipleOf"] for one in found if "multipleOf" in one))
    # Listed values bound the search.
    if not any({"enum", "const"} & set(one) for one in found) and takes_long(multiples):
        shown = " and ".join(map(str, multiples))
        return f"{where}.multipleOf of {shown} takes long to follow; write a smaller or rounder one, or enum"
    together: dict[str, list[Any]] = {}
    for one in found:
        parts = {f"properties.{name}": value for name, value in one.get("properties", {}).items()}
        for name, value in (parts | ({"items": one["items"]} if "items" in one else {})).items():
            if value not in (values := together.setdefault(name, [])):
                values.append(value)
    for name, values in together.items():
        if len(values) > 1 and (key := json.dumps(values)) not in seen:
            seen.add(key)
            if problem := _problem_of_shared([], values, f"{where}.{name}", inlined, seen):
                return problem
    return None


def _problem_of_shared(
    around: list[Any], schemas: list[Any], where: str, inlined: _Inlined, seen: set[str]
) -> str | None:
    """Returns why schemas of one part, and their choices, take long to follow."""
    try:
        added = inlined({"allOf": schemas}, where)
    except ValueError:  # no grammar follows it: a choice may be left out, and others are reported at their place
        return None
    found: list[Any] = []
    for one in (*around, *added):
        if isinstance(one, dict) and one not in found:
            found.append(one)
    if (key := json.dumps({"allOf": found})) in seen:  # choices may refer to themselves
        return None
    seen.add(key)
    if problem := problem_of(found, where, inlined, seen):
        return problem
    choices = itertools.chain(*(one[key] for one in found for key in ("anyOf", "oneOf") if key in one))
    kept = [{key: one[key] for key in one if key not in ("anyOf", "oneOf")} for one in found]
    problems = (_problem_of_shared(kept, [one], where, inlined, seen) for one in choices)
    return next(filter(None, problems), None)
