"""Chooses prompts: none that is measured on, none twice; and writes them."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

RUN = 13


def normalized(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


class Exclusion:
    """Turns that must not be trained on, whole or in part."""

    def __init__(self, turns: Iterable[str]):
        self._turns, self._runs = set(), set()
        for turn in turns:
            words = normalized(turn)
            self._turns.add(tuple(words))
            self._runs.update(_runs(words))

    def covers(self, turns: Sequence[str]) -> bool:
        """Whether any turn is one of the excluded, or shares 13 words in a row with one."""
        for turn in turns:
            words = normalized(turn)
            if tuple(words) in self._turns or any(run in self._runs for run in _runs(words)):
                return True
        return False


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1))


def distinct(records: Iterable[dict], keep: Callable[[dict], bool]) -> Iterator[dict]:
    """The records to keep whose turns did not occur before."""
    seen = set()
    for record in records:
        key = tuple(tuple(normalized(turn)) for turn in record["turns"])
        if key not in seen and keep(record):
            seen.add(key)
            yield record


def write_lines(path: Path, records: Iterable[dict]) -> None:
    """Writes JSON lines under another name first, so that the file is whole or absent."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(partial, path)
