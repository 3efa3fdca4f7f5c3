"""Reads prompts from arguments, files and standard input."""

import sys
from collections.abc import Sequence
from pathlib import Path

_STDIN = "-"


def read_prompts(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns each argument, then each file's text; `-` is standard input, as is nothing at all.

    One newline at the end of a file or of standard input is dropped.

    Raises:
      ValueError: if there is no prompt, or standard input is asked for twice.
      OSError: if a file cannot be read.
    """
    if [*arguments, *files].count(_STDIN) > 1:
        raise ValueError("standard input can be read once only, got '-' several times")
    texts = [_read_stdin() if text == _STDIN else text for text in arguments]
    texts += [_read_stdin() if name == _STDIN else _read_file(name) for name in files]
    if not texts and not sys.stdin.isatty() and (piped := _read_stdin()):
        texts = [piped]
    if not texts:
        raise ValueError("there is no prompt; pass one as an argument, with --file, or through standard input")
    return texts


def _read_stdin() -> str:
    return _decode(sys.stdin.buffer.read(), "standard input")


def _read_file(name: str) -> str:
    if not name:
        raise ValueError("--file has no name; pass the path of a text, or - for standard input")
    return _decode(Path(name).read_bytes(), name)


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error}") from None
