"""Small files, written whole or not at all; and folders that one process writes to."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds the folder; raises `ValueError` if another process does."""
    try:
        with filelock.FileLock(folder / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise ValueError(f"another process is writing to {folder}; wait for it, or pass another --out") from None


def write_text(path: Path, text: str) -> None:
    """Writes a file, atomically."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """Reads one.

    Raises:
      ValueError: it is damaged.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} ({error}); delete it, or pass another --out") from error
