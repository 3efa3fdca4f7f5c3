"""The lines of a run, in a file that an interrupted one goes on from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.training.files import write_text

# All else in a header may change between the parts of one run.
_SAME = ("setting", "machine")
_SHOWN = 4
FIGURES = ("summary", "quality", "against")


class Results:
    """Records in the order they were measured, behind a header; the file is whole at any time.

    A record has a `kind`, and a `unit`: what is measured at once, or again.
    """

    def __init__(self, path: Path | None, header: dict[str, Any], *, resume: bool = False):
        """Begins a file, or goes on with one.

        Args:
          path: the file; `None` keeps the records in memory.
          header: what was asked for (`setting`), where (`machine`) and by which `command`.
          resume: go on with what the file has, if there is one.

        Raises:
          ValueError: the file exists and is not to be resumed, is damaged, or is of another run.
          OSError: it cannot be written.
        """
        self._path = path
        self._lines = [json.dumps({"kind": "run"} | header, ensure_ascii=False)]
        self.records: list[dict[str, Any]] = []
        if path is not None and path.exists():
            if not resume:
                raise ValueError(f"{path} exists; pass --resume to go on with it, or another file")
            self._read(path)
        self._write()

    def has(self, unit: Sequence[Any]) -> bool:
        """Whether a unit was measured."""
        return list(unit) in self._units

    def add(self, unit: Sequence[Any], records: list[dict[str, Any]]) -> None:
        """All records of one unit, at once in the file."""
        for record in records:
            self._append({"unit": list(unit)} | record)
        self._write()

    def finish(self, figures: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Ends the file with figures that follow from the records, by their kind: one of `FIGURES`."""
        lines = [{"kind": kind} | one for kind, several in figures.items() for one in several]
        self._write([json.dumps(line, ensure_ascii=False) for line in lines])

    @property
    def _units(self) -> list[list[Any]]:
        return [record["unit"] for record in self.records]

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False)
        self._lines.append(line)
        self.records.append(json.loads(line))

    def _read(self, path: Path) -> None:
        lines = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                record = json.loads(line)
                kind = record["kind"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}, line {number} is no record of a run; pass another file") from None
            if kind not in FIGURES:  # they follow from the others
                lines.append((line, record))
        if not lines or lines[0][1]["kind"] != "run":
            raise ValueError(f"{path} does not begin with the header of a run; pass another file")
        _check_same(path, lines[0][1], json.loads(self._lines[0]))
        self._lines = [line for line, _ in lines]
        self.records = [record for _, record in lines[1:]]

    def _write(self, more: Sequence[str] = ()) -> None:
        if self._path is not None:
            write_text(self._path, "".join(f"{line}\n" for line in [*self._lines, *more]))


def _check_same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    told = []
    for part in _SAME:
        first, second = before.get(part) or {}, now[part]
        names = sorted(first.keys() | second.keys())
        told += [
            f"{name} was {first.get(name)!r}, now {second.get(name)!r}"
            for name in names
            if first.get(name) != second.get(name)
        ]
    if told:
        more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        raise ValueError(f"{path} holds another run: {'; '.join(told[:_SHOWN])}{more}. Pass the same, or another file")
