"""Questions by name: those of ours that come with the package, or a file of them."""

import os
from pathlib import Path

from jaxspec.training.prompts import Conversation, read_prompts

_FOLDER = Path(__file__).parent
# Five for each of Spec-Bench's tasks; requests of programmers, most of them about code that they give.
NAMES = {"ours": _FOLDER / "prompts.jsonl", "code": _FOLDER / "code.jsonl"}


def read_questions(name_or_path: str | os.PathLike[str]) -> list[Conversation]:
    """The questions of that name ("ours", "code"), else those of a file, as `read_prompts` reads them.

    Raises:
      FileNotFoundError: there is neither.
      ValueError: a line of the file holds no question.
    """
    path = Path(NAMES.get(os.fspath(name_or_path), name_or_path))
    if not path.exists():
        names = ", ".join(NAMES)
        raise FileNotFoundError(f"there is no file {path}; pass a file of JSON lines, or the name of ours: {names}")
    return read_prompts([path])
