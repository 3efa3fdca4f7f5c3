"""Gives requests of an engine what lets them share a program, with values that change nothing where one lacks it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Num

from jaxspec.core.processing import Processor
from jaxspec.core.results import Report
from jaxspec.decoding.room import bucket
from jaxspec.processors.bias import LogitBias
from jaxspec.processors.excluded import AllowedTokens, MinNewTokens
from jaxspec.processors.penalties import Penalties

_Kind = TypeVar("_Kind", bound=Processor)

# Requests of up to this many alternatives share a program, or of up to a power of two times it.
_ALTERNATIVES = 20
# Lists of up to this many tokens share a program, and those of up to its square, its cube and so on.
_LISTED = 16


def alike_processors(made: Sequence[Processor]) -> tuple[Processor, ...]:
    """Returns the processors of a request with all of those that have one value a row, if it has one of them.

    Args:
      made: those of the options, in their order: bias, penalties, bad words, minimum, allowed, grammar.

    Example:
        >>> from jaxspec.processors import MinNewTokens
        >>> from jaxspec.text.alike import alike_processors
        >>> [type(one).__name__ for one in alike_processors([MinNewTokens(2)])]
        ['LogitBias', 'Penalties', 'MinNewTokens', 'AllowedTokens']
    """
    of_rows = (LogitBias, Penalties, MinNewTokens, AllowedTokens)
    others = [one for one in made if not isinstance(one, of_rows)]
    if len(others) == len(made):
        return tuple(made)
    bias = _of(made, LogitBias, LogitBias.of({}))
    allowed = _of(made, AllowedTokens, AllowedTokens(np.zeros(0, np.int32)))
    penalties = _of(made, Penalties, Penalties())
    strengths = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}
    given = {name: getattr(penalties, name) for name in strengths if getattr(penalties, name) is not None}
    return (
        LogitBias(_to_bucket(bias.tokens, -1), _to_bucket(bias.bias, 0)),
        Penalties(**strengths | given),
        MinNewTokens(_of(made, MinNewTokens, MinNewTokens(0)).count),
        AllowedTokens(_to_bucket(allowed.tokens, -1)[None]),  # no token means all
        *others,
    )


def alike_report(alternatives: int, vocab_size: int) -> Report:
    """Returns a report of at least this many alternatives, none if none are asked for.

    Example:
        >>> from jaxspec.text.alike import alike_report
        >>> alike_report(3, vocab_size=300).alternatives
        20
    """
    count = _ALTERNATIVES if alternatives else 0
    while count < alternatives:
        count *= 2
    return Report(alternatives=min(count, vocab_size))


def _of(made: Sequence[Processor], kind: type[_Kind], neutral: _Kind) -> _Kind:
    return next((one for one in made if isinstance(one, kind)), neutral)


def _to_bucket(values: Any, fill: int) -> np.ndarray:
    values = np.asarray(values)
    return np.pad(values, (0, bucket(len(values)) - len(values)), constant_values=fill)


def padded_bias(biases: LogitBias) -> LogitBias:
    """Returns equal biases, with a size that most requests share."""
    ids, values = biases.tokens, biases.bias
    if not isinstance(ids, np.ndarray) or not isinstance(values, np.ndarray):  # not numbers, which `check` refuses
        return biases
    return LogitBias(filled(ids, -1), filled(values, 0.0))


def filled(values: Any, fill: int | float) -> Num[np.ndarray, "n"]:
    """Returns a list filled up to one of a few lengths, so that it is data of a program and not its shape."""
    array = np.asarray(values)
    return np.pad(array, (0, shared_width(len(array), _LISTED) - len(array)), constant_values=fill)


def shared_width(count: int, least: int) -> int:
    """Returns the number of tokens that a program has room for in a list: one of few numbers.

    Example:
        >>> from jaxspec.text.alike import shared_width
        >>> [shared_width(count, 8) for count in (0, 8, 9, 65)]
        [8, 8, 64, 512]
    """
    width = least
    while width < count:
        width *= least
    return width
