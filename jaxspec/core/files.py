"""Turns what a parser raises into one error that names the file, the place in it, and what is wrong there."""

import contextlib
import errno
import json
import os
import re
import struct
import textwrap
import zipfile
import zlib
from collections.abc import Iterator, Mapping
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
# What the system says of a file that may be whole.
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,200})"\s*:')
_TOO_MUCH = re.compile(r"[\[{]{500}|\d{4000}")
DOWNLOAD_AGAIN = "delete it and download it again"
_MAY_NOT_READ = "let it be read by the user who runs this"
_POINTER = b"version https://git-lfs"
# Some of them repeat all that they were asked.
_LONGEST = 300


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
      advice: what to do where it cannot be read, but for what the system refuses, such as want of permission.
    """
    try:
        yield
    except FileFormatError:
        raise
    except _RAISED_BY_PARSERS as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        said = textwrap.shorten(str(error), _LONGEST, placeholder=" ...") or "no reason given"
        if isinstance(error, OSError) and error.errno in _REFUSALS:  # of the machine: the file may be as it should
            advice = _MAY_NOT_READ if isinstance(error, PermissionError) else ""
        raise FileFormatError(path, place, f"{kind}{said}", advice) from error


def check_is_no_pointer(path: Path, start: bytes) -> None:
    """Checks that a file is not what git leaves in its place where git-lfs did not fetch it.

    Args:
      path: the file, for the error.
      start: what it begins with.

    Raises:
      FileFormatError: it is that.
    """
    if start.startswith(_POINTER):
        raise FileFormatError(path, "", "it is a pointer of git-lfs, not the file itself", "run git lfs pull")


def read_json(path: Path, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Args:
      path: the file, in UTF-8.
      advice: what to do where it cannot be read.

    Raises:
      FileFormatError: there is no such file, it is no JSON, or no object.
    """
    if not path.is_file():
        raise FileFormatError(
            path, "", "there is no such file", "pass a folder that has one" if advice == DOWNLOAD_AGAIN else advice
        )
    with reading(path, advice=advice):
        raw = path.read_bytes()
    return parse_json(path, raw, advice)


def parse_json(path: Path, raw: bytes, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Parses a JSON object in which no key has two values, nor in its parts.

    Args:
      path: the file that it stands in, for error messages.
      raw: its text, in UTF-8.
      advice: what to do where it cannot be parsed.

    Raises:
      FileFormatError: it is no JSON, or no object, or a key stands in it twice, with another value.
    """

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            for key, x in pairs:
                if type(x) is not type(found[key]) or x != found[key]:
                    raise FileFormatError(path, key, "it stands there twice", advice)
        return found

    check_is_no_pointer(path, raw)
    with reading(path, advice=advice):
        text = raw.decode("utf-8")
    try:
        with reading(path, advice=advice):
            value = json.loads(text, object_pairs_hook=to_dict)
    except FileFormatError as error:
        raise FileFormatError(path, error.place or _near(text, error.__cause__), error.problem, advice) from error
    return check_fields(path, "", value, {}, advice)


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


def read_json_line(path: Path, number: int, line: bytes, advice: str) -> dict[str, Any]:
    """Reads the JSON object in one line of a file.

    Args:
      path: the file, for the error.
      number: the line's, from 1.
      line: its bytes, in UTF-8.
      advice: what to do where it cannot be read.

    Raises:
      FileFormatError: it is no JSON, or no object.
    """
    with reading(path, f"line {number}", advice):
        value = json.loads(line.decode("utf-8"))
    return check_fields(path, f"line {number}", value, {}, advice)


def check_fields(
    path: str | os.PathLike[str],
    place: str,
    value: Any,
    kinds: Mapping[str, type | tuple[type, ...]],
    advice: str,
) -> dict[str, Any]:
    """Returns a JSON object that has these fields, each of its type; others may stand beside them.

    Args:
      path: the file, for the error.
      place: where in it the object stands; empty for the whole file.
      value: what was read there.
      kinds: the types of each field. Where an integer is expected `true` is none.
      advice: what to do where one is missing or of another type.

    Raises:
      FileFormatError: it is no object, or a field is missing or of another type.
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(path, place, f"expected a JSON object, got {type(value).__name__}", advice)
    for name, kind in kinds.items():
        where, kind = f"{place}: {name}" if place else name, kind if isinstance(kind, tuple) else (kind,)
        if name not in value:
            raise FileFormatError(path, where, "is missing", advice)
        found = value[name]
        if not isinstance(found, kind) or (isinstance(found, bool) and bool not in kind):
            names = " or ".join("null" if one is type(None) else one.__name__ for one in kind)
            shown = textwrap.shorten(repr(found), 80, placeholder=" ...")
            raise FileFormatError(path, where, f"expected {names}, got {shown}", advice)
    return dict(value)
