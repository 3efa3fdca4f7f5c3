"""Reads and writes files: parsers' errors become one error that names the file, the place in it, and the problem.

Files are written completely or not at all.
"""

import contextlib
import errno
import json
import os
import re
import struct
import textwrap
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

# Parsers' errors on unexpected bytes. Any other error is a bug of the program, and passes through.
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
# System errors that say nothing about the file's contents.
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,200})"\s*:')
_TOO_MUCH = re.compile(r"[\[{]{500}|\d{4000}")
DOWNLOAD_AGAIN = "delete it and download it again"
_MAY_NOT_READ = "let it be read by the user who runs this"
_POINTER = b"version https://git-lfs"
# Some parsers quote their whole input.
_LONGEST = 300


class FileFormatError(ValueError):
    """Signals that a file violates its format: it is damaged, or of an unsupported kind.

    Attributes:
      path: the file or folder.
      place: a field, tensor or line in it; empty for the whole file.
      problem: what is wrong there.

    Example:
      >>> jaxspec.core.FileFormatError("config.json", "hidden_size", "expected an integer of at least 1, got -3")
      FileFormatError('config.json: hidden_size: expected an integer of at least 1, got -3')
    """

    def __init__(self, path: str | os.PathLike[str], place: str, problem: str, advice: str = ""):
        """Composes the message.

        Args:
          path: the file or folder.
          place: a field, tensor or line in it; empty for the whole file.
          problem: what is wrong there.
          advice: how to fix it.
        """
        self.path, self.place, self.problem = os.fspath(path), place, problem
        where = f"{self.path}: {place}" if place else self.path
        super().__init__(f"{where}: {problem}" + (f"; {advice}" if advice else ""))


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], place: str = "", advice: str = DOWNLOAD_AGAIN) -> Iterator[None]:
    """Turns a parser's errors inside the context into `FileFormatError`, which itself passes through.

    Args:
      path: the file or folder that is read.
      place: the part of it that is read.
      advice: what to do if it cannot be read. Not shown when the system refuses, for lack of permission for example.
    """
    try:
        yield
    except FileFormatError:
        raise
    except _RAISED_BY_PARSERS as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        said = textwrap.shorten(str(error), _LONGEST, placeholder=" ...") or "no reason given"
        if isinstance(error, OSError) and error.strerror:
            kind, said = "", error.strerror  # without the number, and the name that comes first
        if isinstance(error, OSError) and error.errno in _REFUSALS:  # the file may be intact
            advice = _MAY_NOT_READ if isinstance(error, PermissionError) else ""
        raise FileFormatError(path, place, f"{kind}{said}", advice) from error


def as_path(name: str, value: Any) -> Path:
    """Converts a path that a user passed as the argument `name`.

    Raises:
      TypeError: it is neither a string nor a path.
      ValueError: it is empty, or has a lone surrogate or NUL, which no file's name has in UTF-8.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str):
        raise TypeError(f"{name} must be a string or a path, got {' '.join(repr(value).split()):.80}")
    if not text:
        raise ValueError(f"{name} must not be empty; pass '.' for the current folder")
    if wrong := re.search("[\0\ud800-\udfff]", text):
        raise ValueError(f"{name} has the character {wrong[0]!a}, which no file's name has; got {text!a}")
    return Path(text)


def check_is_no_pointer(path: Path, start: bytes) -> None:
    """Checks that a file is not a git-lfs pointer, which stands for a file that was not fetched.

    Args:
      path: the file, for the error.
      start: its first bytes.

    Raises:
      FileFormatError: it is a pointer.
    """
    if start.startswith(_POINTER):
        raise FileFormatError(path, "", "it is a pointer of git-lfs, not the file itself", "run git lfs pull")


def decode_text(data: bytes) -> str:
    """Decodes a text in UTF-8, without the byte-order mark and the carriage returns of editors on Windows.

    Raises:
      UnicodeDecodeError: it is not UTF-8.
    """
    return data.decode("utf-8-sig").replace("\r\n", "\n")


class _RepeatedKeyError(ValueError):
    """Says that a key occurs twice in one object of JSON, with different values."""

    def __init__(self, key: str):
        self.key = key
        super().__init__(f"{key!r:.80} occurs twice, with different values")


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, x in pairs:
            if type(x) is not type(found[key]) or x != found[key]:
                raise _RepeatedKeyError(key)
    return found


def json_value(text: str | bytes | bytearray) -> Any:
    """Parses JSON; at any depth, a repeated key must have equal values, as readers differ in which one they take.

    Raises:
      ValueError: it is not JSON, or a key occurs twice with different values.

    Example:
        >>> from jaxspec.io.files import json_value
        >>> json_value('{"k": 1, "k": 2}')
        Traceback (most recent call last):
        ValueError: 'k' occurs twice, with different values
    """
    try:
        return json.loads(text, object_pairs_hook=_to_dict)
    except _RepeatedKeyError as error:
        raise ValueError(str(error)) from None


def read_json(path: Path, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Args:
      path: the file, in UTF-8.
      advice: what to do if it cannot be read.

    Raises:
      FileFormatError: there is no such file, or it is not JSON, or not an object.
    """
    if not path.is_file():
        raise FileFormatError(
            path, "", "there is no such file", "pass a folder that has one" if advice == DOWNLOAD_AGAIN else advice
        )
    with reading(path, advice=advice):
        raw = path.read_bytes()
    return parse_json(path, raw, advice)


def parse_json(path: Path, raw: bytes, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Parses a JSON object; at any depth, a repeated key must have equal values.

    Args:
      path: its file, for error messages.
      raw: its text, in UTF-8.
      advice: what to do if it cannot be parsed.

    Raises:
      FileFormatError: it is not JSON, or not an object, or a key occurs twice with different values.
    """

    check_is_no_pointer(path, raw)
    with reading(path, advice=advice):
        text = raw.decode("utf-8")
    try:
        with reading(path, advice=advice):
            value = json.loads(text, object_pairs_hook=_to_dict)
    except FileFormatError as error:
        if isinstance(repeated := error.__cause__, _RepeatedKeyError):
            problem = "it occurs twice, with different values"
            raise FileFormatError(path, repeated.key, problem, advice) from repeated
        raise FileFormatError(path, error.place or _near(text, error.__cause__), error.problem, advice) from error
    return check_fields(path, "", value, {}, advice)


def _near(text: str, error: BaseException | None) -> str:
    """Returns the last key before the place that cannot be parsed; empty if that place is not known."""
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
      number: the line number, from 1.
      line: its bytes, in UTF-8.
      advice: what to do if it cannot be read.

    Raises:
      FileFormatError: it is not JSON, or not an object.
    """
    with reading(path, f"line {number}", advice):
        value = json_value(line.decode("utf-8"))
    return check_fields(path, f"line {number}", value, {}, advice)


def check_fields(
    path: str | os.PathLike[str],
    place: str,
    value: Any,
    kinds: Mapping[str, type | tuple[type, ...]],
    advice: str,
) -> dict[str, Any]:
    """Checks the types of an object's required fields, and returns it. It may have other fields.

    Args:
      path: the file, for the error.
      place: the object's place in the file; empty for the whole file.
      value: the parsed JSON.
      kinds: the allowed types of each required field. `true` is not an integer.
      advice: what to do if a field is missing or has another type.

    Raises:
      FileFormatError: it is not an object, or a field is missing or has another type.
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


@contextlib.contextmanager
def exclusive(written: Path, lock: Path | None = None, *, advice: str = "pass another --out") -> Iterator[None]:
    """Locks a file or folder against other processes. The lock ends with the process, however it ends.

    Args:
      written: what is locked.
      lock: the file that is the lock; `None` is `.lock` in the folder.
      advice: what else to do if it is locked.

    Raises:
      ValueError: another process holds it.
    """
    try:
        held = filelock.FileLock(lock or written / ".lock", timeout=0).acquire()
    except filelock.Timeout:
        raise ValueError(f"another process is writing to {written}; wait for it, or {advice}") from None
    with held:
        yield


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically. Of several processes that write it at once, the last one's data stay."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)  # no later call has this name
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))
