"""Keeps the records of a run in a file of JSON lines, from which an interrupted run resumes."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from jaxspec.io.files import FileFormatError, check_fields, read_json_line, reading, write_text
from jaxspec.io.manifest import differences

# Everything else in a header may change between the parts of one run.
_SAME = ("setting", "machine")
_ANOTHER = "pass another file"
_NUMBER = (int, float)
# The fields of a line that resuming needs, by kind.
_KINDS = {
    "run": {"setting": dict, "machine": dict},
    "turn": {
        **dict.fromkeys(("unit", "questions", "left_out", "prompt_tokens"), list),
        **dict.fromkeys(("batch", "turn", "peak_memory_bytes"), int),
        "temperature": _NUMBER,
        "task": str,
        "cases": dict,
    },
}
T = TypeVar("T")
K = TypeVar("K")

# The first place where two answers differ, and the distance of the worse token there below the best, in nats: `None` if
# one answer ended before the other.
Divergence = tuple[int, float | None]


class Timed(TypedDict):
    """Holds one answer of a batch or a peer: its time, and the number and ids of new tokens by row."""

    seconds: float
    tokens: list[int]
    ids: list[list[int]]
    divergences: NotRequired[list[Divergence | None]]


class Counts(TypedDict):
    """Holds the new tokens, rounds and drafts of each row; counts by position in the draft are summed over rows."""

    tokens: list[int]
    ids: list[list[int]]
    rounds: list[int]
    drafted: list[int]
    accepted: list[int]
    drafted_at: list[int]
    accepted_at: list[int]


class Repeat(Timed, Counts):
    """Holds one answer of a batch, with the prompt's time and each row's summed log-probabilities of its tokens."""

    prefill_seconds: float
    log_probs: list[float]


class Turn(TypedDict):
    """Holds one turn of a batch of conversations: the repeats of each case, and of each mode of a peer.

    `questions` and `left_out` are indices of questions. `weights` names the weights that all answered with, if a run
    compares peers with several.
    """

    kind: Literal["turn"]
    unit: list[int | float | str]
    batch: int
    temperature: float
    weights: NotRequired[str]
    task: str
    turn: int
    questions: list[int]
    left_out: list[int]
    prompt_tokens: list[int]
    cases: dict[str, list[Repeat]]
    peers: NotRequired[dict[str, list[Timed]]]
    peak_memory_bytes: int


def answered(records: Sequence[Turn]) -> list[Turn]:
    """Returns the records of turns with at least one answer."""
    return [record for record in records if record["cases"]]


def setting_of(turn: Turn) -> tuple[int, float, str]:
    """Returns the setting of a turn: its batch, temperature and weights."""
    return turn["batch"], turn["temperature"], turn.get("weights", "")


def repeats_of(turn: Turn, label: str) -> Sequence[Timed]:
    """Returns the repeats of a case or of a peer's mode."""
    return (turn["cases"] if label in turn["cases"] else turn.get("peers", {}))[label]


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups items by a key, in the order in which keys first occur."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class Results:
    """Stores a header and the records, in the order of measurement; the file is valid at any time.

    Records measured together share a `unit`, which is measured again as a whole.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any], *, resume: bool = False):
        """Creates a file, or resumes one.

        Args:
          path: the file; `None` keeps the records in memory.
          header: the first line: the `setting`, the `machine` and the `command`.
          resume: whether to resume the file if it exists.

        Raises:
          ValueError: if the file exists and `resume` is False, or it holds another run.
          FileFormatError: if a line of the file is damaged.
          OSError: if the file cannot be written.
        """
        self._path = path
        self._header: dict[str, Any] = {"kind": "run", **header}
        self.records: list[Turn] = []
        if path is not None and path.exists():
            if not resume:
                raise ValueError(f"{path} exists; pass --resume to continue it, or another file")
            self._read(path)
        self._write()

    def has(self, unit: list[int | float | str]) -> bool:
        """Returns whether a unit has been measured."""
        return any(record["unit"] == unit for record in self.records)

    def add(self, records: Iterable[Turn]) -> None:
        """Adds all records of one unit to the file at once."""
        self.records += records
        self._write()

    def finish(self, figures: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Appends the figures computed from the records to the file, by kind."""
        self._write([{"kind": kind} | one for kind, several in figures.items() for one in several])

    def _read(self, path: Path) -> None:
        with reading(path, advice=_ANOTHER):
            text = path.read_bytes()
        lines = [_record(path, number, line) for number, line in enumerate(text.splitlines(), start=1)]
        lines = [record for record in lines if record["kind"] in _KINDS]  # figures are computed from these
        if not lines or [place for place, record in enumerate(lines) if record["kind"] == "run"] != [0]:
            raise FileFormatError(path, "", "expected one header of a run, in its first line", _ANOTHER)
        before, now = ({part: header.get(part) for part in _SAME} for header in (lines[0], self._header))
        if found := differences(before, now):
            raise ValueError(f"{path} holds another run: {found}. Pass the same, or another file")
        self._header, *self.records = lines

    def _write(self, figures: Sequence[dict[str, Any]] = ()) -> None:
        if self._path is not None:
            lines = (json.dumps(line, ensure_ascii=False) for line in (self._header, *self.records, *figures))
            write_text(self._path, "".join(f"{line}\n" for line in lines))


def _record(path: Path, number: int, line: bytes) -> Any:
    place = f"line {number}"
    record = read_json_line(path, number, line, _ANOTHER)
    kind = check_fields(path, place, record, {"kind": str}, _ANOTHER)["kind"]
    check_fields(path, place, record, _KINDS.get(kind, {}), _ANOTHER)
    for label, repeats in record["cases"].items() if kind == "turn" else ():
        check_fields(path, f"{place}: cases", record["cases"], {label: list}, _ANOTHER)
        for one, repeat in enumerate(repeats):
            where = f"{place}: cases: {label}[{one}]"
            check_fields(path, where, repeat, {"seconds": _NUMBER, "tokens": list}, _ANOTHER)
    return record
