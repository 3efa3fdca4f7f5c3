"""Turns what a parser raises into one error that names the file, the place in it, and what is wrong there."""

import contextlib
import json
import os
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
        value = json.loads(path.read_text("utf-8"))
    if not isinstance(value, dict):
        raise FileFormatError(path, "", f"expected a JSON object, got {type(value).__name__}", advice)
    return value
