"""Reads an engine's counts of accepted drafts, and compares them with the expectations of a reference.

It reads two kinds of files:

    counters      one JSON object, as in vLLM: {"num_drafts": 900, "num_accepted_tokens_per_pos": [640, 410, 260]}
                  position `i` counts the rounds that accepted at least `i` drafts
    rounds        JSON lines, one per round of a request: {"context": 118, "drafted": 3, "accepted": 2, "request": "a"}
                  the tokens before the round, the drafts submitted, those accepted; `request` is optional

Rounds of one request are correlated. Errors are estimated between requests if the log names them. Otherwise, rounds
count as independent, and what looks like three standard errors may be two.
"""

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Int

from jaxspec.bench.estimate import Estimate, ratio
from jaxspec.bench.report import Table
from jaxspec.core.validate import MOST_DRAFTS
from jaxspec.io.files import decode_text, reading

# An engine and the reference differ if they are more standard errors apart than this.
LIMIT = 3.0
_PREFIX = "vllm:spec_decode_"
_DRAFTS, _ACCEPTED = "num_drafts", "num_accepted_tokens_per_pos"
_FIELDS = ("context", "drafted", "accepted")
_EXAMPLES = f'{{"{_DRAFTS}": 900, "{_ACCEPTED}": [640, 410]}}, or lines {{"context": 118, "drafted": 3, "accepted": 2}}'


@dataclasses.dataclass(frozen=True)
class EngineRounds:
    """Holds the rounds of a log with one line per round."""

    context: Int[np.ndarray, "r"]
    drafted: Int[np.ndarray, "r"]
    accepted: Int[np.ndarray, "r"]
    request: Int[np.ndarray, "r"]


@dataclasses.dataclass(frozen=True)
class EngineLog:
    """Holds an engine's counts.

    Attributes:
      acceptance: the share of accepted drafts among those that verification reached, by position.
      rounds: the rounds, if the log has them.
    """

    acceptance: tuple[Estimate, ...]
    rounds: EngineRounds | None = None

    @property
    def positions(self) -> int:
        """The maximum number of drafts of a round."""
        return len(self.acceptance)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file of either kind.

        Raises:
          FileFormatError: if the file is of neither kind; names the file, and the line if there are several.
          ValueError: if the file is empty, or counts nothing.
          OSError: if the file cannot be read.
        """
        path = Path(path)
        data = path.read_bytes()
        with reading(path, advice=""):
            text = decode_text(data)
        lines = [(place, line) for place, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not lines:
            raise ValueError(f"{path} is empty; expected {_EXAMPLES}")
        try:
            content = json.loads("\n".join(line for _, line in lines))
        except ValueError:
            content = None
        if isinstance(content, Mapping) and "context" not in content:
            with reading(path, "counters", advice=""):
                return cls._of_counters(content)
        rounds = []
        for place, line in lines:
            with reading(path, f"line {place}", advice=""):
                rounds.append(_round(json.loads(line), place))
        return cls._of_rounds(rounds)

    @classmethod
    def _of_counters(cls, fields: Mapping[str, Any]) -> Self:
        fields = {name.removeprefix(_PREFIX): value for name, value in fields.items()}
        missing = [name for name in (_DRAFTS, _ACCEPTED) if name not in fields]
        if missing:
            raise ValueError(f"there is no {' and no '.join(missing)}; expected {_EXAMPLES}")
        drafts, accepted = fields[_DRAFTS], fields[_ACCEPTED]
        if not isinstance(accepted, list) or not accepted or not all(map(_is_count, [drafts, *accepted])):
            raise ValueError(f"{_DRAFTS} and {_ACCEPTED} must be a count and a list of counts, got {drafts, accepted}")
        reached = [drafts, *accepted]
        if drafts == 0 or any(more > fewer for fewer, more in itertools.pairwise(reached)):
            raise ValueError(
                f"{_DRAFTS} must be above 0, and no position may have more than the one before it, got {reached}: "
                "position i counts the rounds that accepted at least i drafts"
            )
        pairs = itertools.pairwise(reached)
        return cls(tuple(_share(passed, count) for count, passed in pairs))

    @classmethod
    def _of_rounds(cls, found: Sequence[tuple[int, int, int, str]]) -> Self:
        context, drafted, accepted = (np.array([one[place] for one in found]) for place in range(3))
        _, request = np.unique([one[3] for one in found], return_inverse=True)
        if not drafted.any():
            raise ValueError("no round of the engine's log drafted anything")
        shares = []
        for place in range(int(drafted.max())):
            reached = (drafted > place) & (accepted >= place)
            shares.append(ratio(reached & (accepted > place), reached, request))
        return cls(tuple(shares), EngineRounds(context, drafted, accepted, request))


@dataclasses.dataclass(frozen=True)
class Difference:
    """Compares one figure of an engine with the reference; `place` names the position or range."""

    place: str
    engine: Estimate
    reference: Estimate

    @property
    def errors(self) -> float:
        """The number of standard errors by which the engine exceeds the reference; NaN if neither has one."""
        squares = [(one.error or 0.0) ** 2 for one in (self.engine, self.reference)]
        difference = self.engine.value - self.reference.value
        return difference / math.sqrt(sum(squares)) if sum(squares) > 0 else math.nan

    @property
    def differs(self) -> bool:
        """Whether they are more than `LIMIT` standard errors apart."""
        return abs(self.errors) > LIMIT

    def sentence(self) -> str:
        """Describes the difference in a sentence."""
        return (
            f"Engine and reference differ at {self.place}: {self.engine} in the engine, {self.reference} in the "
            f"reference, {abs(self.errors):.1f} standard errors apart."
        )

    def as_record(self) -> dict[str, Any]:
        """Returns it for JSON."""
        errors = None if math.isnan(self.errors) else self.errors
        parts = {"engine": self.engine.as_record(), "reference": self.reference.as_record()}
        return {"place": self.place, **parts, "errors": errors, "differs": self.differs}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Compares an engine's counts with the reference, by position and by length of context."""

    positions: tuple[Difference, ...]
    by_context: tuple[Difference, ...]

    @classmethod
    def of(
        cls, log: EngineLog, acceptance: Sequence[Estimate], ranges: Sequence[tuple[int, int, Estimate]]
    ) -> "Comparison":
        """Compares the figures that both have.

        Args:
          log: the engine's log.
          acceptance: the reference's acceptance at each position, for at least the engine's positions.
          ranges: the reference's tokens per round by length of context: first, last, and the figure.
        """
        positions = tuple(
            Difference(f"draft {place}", engine, reference)
            for place, (engine, reference) in enumerate(zip(log.acceptance, acceptance, strict=False), start=1)
        )
        by_context = []
        for first, last, reference in ranges if log.rounds is not None else ():
            rounds = log.rounds
            assert rounds is not None
            inside = (rounds.context >= first) & (rounds.context <= last)
            if inside.any():
                tokens = 1.0 + rounds.accepted[inside]
                engine = ratio(tokens, np.ones(len(tokens)), rounds.request[inside])
                by_context.append(Difference(f"{first} to {last} tokens of context", engine, reference))
        return cls(positions, tuple(by_context))

    @property
    def first(self) -> Difference | None:
        """The first position, else the first range of contexts, where engine and reference differ."""
        return next((one for one in (*self.positions, *self.by_context) if one.differs), None)

    def conclusion(self) -> str:
        """Says in a sentence whether engine and reference differ, and where first."""
        if (first := self.first) is None:
            return f"The engine's counts are within {LIMIT:g} standard errors of the reference at every position."
        return first.sentence()

    def table(self) -> Table:
        """Returns the table of all differences."""
        columns = {
            "": lambda one: one.place,
            "engine": lambda one: str(one.engine),
            "reference": lambda one: str(one.reference),
            "standard errors apart": lambda one: f"{one.errors:+.1f}",
        }
        return Table.of("Engine and reference", columns, (*self.positions, *self.by_context))

    def as_record(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return {
            "positions": [one.as_record() for one in self.positions],
            "by_context": [one.as_record() for one in self.by_context],
            "first_difference": None if self.first is None else self.first.place,
            "conclusion": self.conclusion(),
        }


def _share(passed: int, count: int) -> Estimate:
    """Estimates a share of independent trials."""
    if count == 0:
        return Estimate(math.nan)
    share = passed / count
    # A share of 0 or 1 would give an error of 0, so one more trial is added, half a success.
    smoothed = (passed + 0.5) / (count + 1)
    return Estimate(share, math.sqrt(smoothed * (1 - smoothed) / count))


def _round(fields: Any, place: int) -> tuple[int, int, int, str]:
    if not isinstance(fields, Mapping) or not all(_is_count(fields.get(name)) for name in _FIELDS):
        raise ValueError(f"expected counts {', '.join(_FIELDS)}, got {fields!r:.80}; see {_EXAMPLES}")
    context, drafted, accepted = (fields[name] for name in _FIELDS)
    if drafted > MOST_DRAFTS or context >= 2**31:
        raise ValueError(f"expected at most {MOST_DRAFTS} drafts and 2^31 tokens, got {fields!r:.80}")
    if accepted > drafted:
        raise ValueError(f"{accepted} drafts were accepted of {drafted}; expected at most all of them")
    return context, drafted, accepted, str(fields.get("request", f"line {place}"))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
