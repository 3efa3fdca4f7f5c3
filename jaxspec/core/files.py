"""Turns what a parser raises into one error that names the file, the place in it, and what is wrong there."""

import contextlib
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What parsers raise at bytes that they did not expect. Others are faults of the program, and go through.
_RAISED_BY_PARSERS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,200})"\s*:')
_TOO_MUCH = re.compile(r"[\[{]{500}|\d{4000}")
DOWNLOAD_AGAIN = "delete it and download it again"


class FileFormatError(ValueError):
    """Signals that a file does not hold what its format asks for: it is damaged, or of a kind that is not supported.

    Attributes:
      path: the file or folder.
      place: where in it: a field, a tensor, a line; empty for the whole file.
      problem: what is wrong there.

    Example:
      >>> jaxspec.core.FileFormatError("config.json", "hidden_size", "expected an integer of at least 1, got -3")
      FileFormatError('config.json: hidden_size: expected an integer of at least 1, got -3')
    """

    def __init__(self, path: str | os.PathLike[str], place: str, problem: str, advice: str = ""):
        """Says what is wrong.

        Args:
          path: the file or folder.
          place: where in it; empty for the whole file.
          problem: what is wrong there.
          advice: what to do.
        """
        self.path, self.place, self.problem = os.fspath(path), place, problem
        where = f"{self.path}: {place}" if place else self.path
        super().__init__(f"{where}: {problem}" + (f"; {advice}" if advice else ""))


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], place: str = "", advice: str = DOWNLOAD_AGAIN) -> Iterator[None]:
    """Turns what a parser raises inside into `FileFormatError`; one that is raised there already stays as it is.

    Args:
      path: the file or folder that is read.
      place: what is read of it.
      advice: what to do where it cannot be read.
    """
    try:
        yield
    except FileFormatError:
        raise
    except _RAISED_BY_PARSERS as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        said = " ".join(str(error).split()) or "no reason given"
        raise FileFormatError(path, place, f"{kind}{said}", advice) from error


def read_json(path: Path, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Args:
      path: the file, in UTF-8.
      advice: what to do where it cannot be read.

    Raises:
      FileFormatError: there is no such file, it is no JSON, or no object.
    """
    if not path.is_file():
        raise FileFormatError(path, "", "there is no such file", "pass a folder that has one")
    with reading(path, advice=advice):
        raw = path.read_bytes()
    return parse_json(path, raw, advice)


def parse_json(path: Path, raw: bytes, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Parses a JSON object whose keys differ from each other, as those of its parts do.

    Args:
      path: the file that it stands in, for error messages.
      raw: its text, in UTF-8.
      advice: what to do where it cannot be parsed.

    Raises:
      FileFormatError: it is no JSON, or no object, or a key stands in it twice.
    """

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise FileFormatError(path, twice, "it stands there twice", advice)
        return found

    with reading(path, advice=advice):
        text = raw.decode("utf-8")
    try:
        with reading(path, advice=advice):
            value = json.loads(text, object_pairs_hook=to_dict)
    except FileFormatError as error:
        raise FileFormatError(path, error.place or _near(text, error.__cause__), error.problem, advice) from error
    if not isinstance(value, dict):
        raise FileFormatError(path, "", f"expected a JSON object, got {type(value).__name__}", advice)
    return value


def _near(text: str, error: BaseException | None) -> str:
    """Returns the last key before what cannot be parsed; empty if it is not known where that is."""
    found = _TOO_MUCH.search(text)
    end = error.pos if isinstance(error, json.JSONDecodeError) else found.start() if found else 0
    key = ""
    for match in _KEY.finditer(text, 0, end):
        key = match[1]
    with contextlib.suppress(ValueError):
        key = json.loads(f'"{key}"')
    return f"near {key}" if key else ""
