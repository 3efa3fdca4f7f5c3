"""Keeps the records of a run in a file of JSON lines, which an interrupted run goes on from."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from jaxspec.training.files import differences, write_text

# All else in a header may change between the parts of one run.
_SAME = ("setting", "machine")
FIGURES = ("summary", "quality", "against")
T = TypeVar("T")
K = TypeVar("K")

# The first place where two answers differ, and how far the worse token there is below the best, in nats: `None` where
# one answer ended before the other.
Divergence = tuple[int, float | None]


class Counts(TypedDict):
    """New tokens, rounds and drafts of each row; by position in the draft, all rows together."""

    tokens: list[int]
    rounds: list[int]
    drafted: list[int]
    accepted: list[int]
    drafted_at: list[int]
    accepted_at: list[int]


class Repeat(Counts):
    """One answer of a batch: its counts, its times, its token ids and the sum of their log-probs by row."""

    prefill_seconds: float
    first_token_seconds: float
    seconds: float
    joules: float | None
    ids: list[list[int]]
    log_probs: list[float]
    divergences: NotRequired[list[Divergence | None]]


class PeerRepeat(TypedDict):
    """One answer of a peer; `None` where it does not tell how many tokens were drafted or accepted."""

    seconds: float
    tokens: list[int]
    ids: list[list[int]]
    drafted: int | None
    accepted: int | None
    divergences: NotRequired[list[Divergence | None]]


class CaseRecord(TypedDict):
    """The repeats of one case, and the time of its first 100 tokens where every row has as many."""

    repeats: list[Repeat]
    hundred_tokens_seconds: float | None


class PeerRecord(TypedDict):
    """The repeats of one mode of a peer."""

    repeats: list[PeerRepeat]


class Turn(TypedDict):
    """One turn of a batch of conversations; `questions` and `left_out` are indices of questions."""

    kind: Literal["turn"]
    unit: NotRequired[list[int | float]]
    batch: int
    temperature: float
    task: str
    turn: int
    questions: list[int]
    left_out: list[int]
    prompt_tokens: list[int]
    cases: dict[str, CaseRecord]
    peers: NotRequired[dict[str, PeerRecord]]
    peak_memory_bytes: int


class Header(TypedDict):
    """The first line: what was asked for, where it ran, and by which command."""

    setting: dict[str, Any]
    machine: dict[str, Any]
    command: str
    cases: NotRequired[dict[str, dict[str, Any]]]


def answered(records: Sequence[Turn]) -> list[Turn]:
    """Returns the records of turns in which something was answered."""
    return [record for record in records if record["cases"]]


def repeats_of(turn: Turn, label: str) -> Sequence[Repeat | PeerRepeat]:
    """Returns the repeats of a case, or of a peer's mode."""
    return (turn["cases"] if label in turn["cases"] else turn.get("peers", {}))[label]["repeats"]


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups items by a key, in the order in which keys are met."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class Results:
    """Records in the order they were measured, behind a header; the file is valid at any time.

    Records measured at once share a `unit`, which is measured again as one.
    """

    def __init__(self, path: Path | None, header: Header, *, resume: bool = False):
        """Begins a file, or goes on with one.

        Args:
          path: the file; `None` keeps the records in memory.
          header: the first line.
          resume: go on with the file, if it exists.

        Raises:
          ValueError: the file exists and is not to be resumed, is damaged, or is of another run.
          OSError: it cannot be written.
        """
        self._path = path
        self._header: dict[str, Any] = {"kind": "run"} | header
        self.records: list[Turn] = []
        if path is not None and path.exists():
            if not resume:
                raise ValueError(f"{path} exists; pass --resume to go on with it, or another file")
            self._read(path)
        self._write()

    def has(self, unit: Sequence[int | float]) -> bool:
        """Returns whether a unit was measured."""
        return any(record.get("unit") == list(unit) for record in self.records)

    def add(self, unit: Sequence[int | float], records: Sequence[Turn]) -> None:
        """Adds all records of one unit to the file at once."""
        for record in records:
            record["unit"] = list(unit)
        self.records += records
        self._write()

    def finish(self, figures: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Ends the file with figures that follow from the records, by their kind: one of `FIGURES`."""
        self._write([{"kind": kind} | one for kind, several in figures.items() for one in several])

    def _read(self, path: Path) -> None:
        lines = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                kind = (record := json.loads(line))["kind"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}, line {number} is no record of a run; pass another file") from None
            if kind in ("run", "turn"):  # figures follow from these
                lines.append(record)
        if not lines or lines[0]["kind"] != "run":
            raise ValueError(f"{path} does not begin with the header of a run; pass another file")
        before, now = ({part: header.get(part) for part in _SAME} for header in (lines[0], self._header))
        if told := differences(before, now):
            raise ValueError(f"{path} holds another run: {told}. Pass the same, or another file")
        self._header, *self.records = lines

    def _write(self, figures: Sequence[dict[str, Any]] = ()) -> None:
        if self._path is not None:
            lines = (json.dumps(line, ensure_ascii=False) for line in (self._header, *self.records, *figures))
            write_text(self._path, "".join(f"{line}\n" for line in lines))
