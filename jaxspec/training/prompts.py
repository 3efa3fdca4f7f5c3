"""Reads prompt files, one conversation a line, and keeps evaluation questions out of training data.

Texts are compared after normalization: Unicode's NFKC, lower case, and each run of white space as one space. Turns
are compared by hash, so that a list of hashes can be kept beside a trained model and shows nothing of the questions;
longer overlaps by runs of 13 words (the n-gram overlap of Brown et al. 2005.14165, appendix C).
"""

import dataclasses
import gzip
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jaxspec.core.files import reading

UNSTATED = "unstated"
TURNS_FILE = "prompts.sha256.gz"
RUN = 13
_FORMS = ("prompt", "turns", "messages")
_HALF = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Holds a conversation: what the user says in each turn, and the answers that are given and not generated.

    Attributes:
      turns: the user's messages, one at least.
      answers: the assistant's to the first turns; the target answers the others.
      system: the system message, or `None`.
      category: what kind of question it is.
      source: where it comes from.
      license: under which license.
      references: good answers to the first turns, empty where there is none; texts are measured against them, and no
        model sees them.
    """

    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()
    system: str | None = None
    category: str = UNSTATED
    source: str = UNSTATED
    license: str = UNSTATED
    references: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def texts(self) -> tuple[str, ...]:
        """Returns all that is given: the system message, the turns and the answers."""
        return (*(() if self.system is None else (self.system,)), *self.turns, *self.answers)

    def messages(self, answers: Sequence[str]) -> list[dict[str, str]]:
        """Returns the turn that follows so many answers, and all before it, as a chat template takes them."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn, answer in zip(self.turns, (*answers, None), strict=False):
            messages.append({"role": "user", "content": turn})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        return messages


def read_prompts(paths: Sequence[str | os.PathLike[str]]) -> list[Conversation]:
    """Reads files of JSON lines, one after the other.

    A line is an object with one of
      * `"prompt"`: a user's message;
      * `"turns"`: the user's messages in turn, and beside them `"answers"`, one a turn, if they are given;
      * `"messages"`: dictionaries with `role` and `content`: at most one of the system first, then user and assistant
        in turn. What the assistant says is used as it is.
    `"category"`, `"source"` and `"license"` are strings; `"reference"` is a good answer, or one for each of the first
    turns, a string or a list of its parts; other keys are ignored.

    Raises:
      FileFormatError: a line is none of these; names the file and the line.
      ValueError: there is no line.
      OSError: a file cannot be read.
    """
    conversations = [conversation for path in paths for conversation in _read(Path(path))]
    if not conversations:
        names = ", ".join(os.fspath(path) for path in paths) or "no file"
        raise ValueError(f"there is no prompt in {names}; expected JSON lines such as {_example()}")
    return conversations


def _read(path: Path) -> Iterator[Conversation]:
    """Reads one file; errors name its line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            with reading(path, f"line {number}", advice=""):
                conversation = _parse(json.loads(line.decode("utf-8")))
            yield conversation


def _parse(fields: Any) -> Conversation:
    """Reads one line's object."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected an object such as {_example()}, got {_kind(fields)}")
    forms = [name for name in _FORMS if name in fields]
    if len(forms) != 1:
        raise ValueError(f"expected one of {', '.join(_FORMS)}, got {' and '.join(forms) or sorted(fields)}")
    if "answers" in fields and forms != ["turns"]:
        raise ValueError(f"answers stand beside turns, got {forms[0]}; put them into messages, or pass turns")
    labels: dict[str, Any] = {
        name: _string(fields[name], name) for name in ("category", "source", "license") if name in fields
    }
    labels["references"] = _references(fields.get("reference"))
    if forms == ["prompt"]:
        return Conversation((_said(fields["prompt"], "prompt"),), **labels)
    if forms == ["messages"]:
        return _from_messages(fields["messages"], labels)
    turns = _strings(fields["turns"], "turns")
    answers = _strings(fields["answers"], "answers") if "answers" in fields else ()
    if answers and len(answers) != len(turns):
        raise ValueError(f"expected one answer a turn, got {len(answers)} for {len(turns)}")
    return Conversation(turns, answers, **labels)


def _from_messages(messages: Any, labels: dict[str, Any]) -> Conversation:
    """Reads the form with roles."""
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise ValueError("messages must be a list of objects with role and content")
    said = [(message.get("role"), _said(message.get("content"), "content")) for message in messages]
    system = said.pop(0)[1] if said and said[0][0] == "system" else None
    roles = [role for role, _ in said]
    if not roles or roles != [("user", "assistant")[place % 2] for place in range(len(roles))]:
        raise ValueError(f"messages must be of user and assistant in turn, after one of system or none, got {roles}")
    texts = [text for _, text in said]
    return Conversation(tuple(texts[0::2]), tuple(texts[1::2]), system, **labels)


def _references(value: Any) -> tuple[str, ...]:
    """Reads the good answers."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError(f"reference must be a string or a list of strings, got {_kind(value)}")
    return tuple(_reference(one, f"reference[{place}]") for place, one in enumerate(value))


def _reference(value: Any, name: str) -> str:
    """Reads a string, or its parts: Spec-Bench's questions about documents list what an answer should say."""
    return "; ".join(_string(part, name) for part in value) if isinstance(value, list) else _string(value, name)


def _strings(values: Any, name: str) -> tuple[str, ...]:
    """Reads a list of strings that are not empty."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} must be a list of at least one string, got {_kind(values)}")
    return tuple(_said(value, f"{name}[{place}]") for place, value in enumerate(values))


def _said(value: Any, name: str) -> str:
    """Reads a string that is not empty."""
    if not _string(value, name).strip():
        raise ValueError(f"{name} is empty; leave the line out")
    return value


def _string(value: Any, name: str) -> str:
    """Reads a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {_kind(value)}")
    if half := _HALF.search(value):
        raise ValueError(f"{name} must be of whole characters, got half of a surrogate pair at {half.start()}")
    return value


def _kind(value: Any) -> str:
    """Names the type of what was got."""
    return "an empty list" if value == [] else type(value).__name__


def _example() -> str:
    """Returns a line as it should be."""
    return '{"turns": ["Hello", "Say that in French."], "category": "chat"}'


def normalize(text: str) -> str:
    """Returns the text in the form in which turns are compared."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def turn_hash(text: str) -> str:
    """Returns the SHA-256 of the normalized text, in hexadecimal."""
    return hashlib.sha256(normalize(text).encode()).hexdigest()


class Exclusion:
    """Lists the questions of an evaluation, which no training prompt may share."""

    def __init__(self, conversations: Iterable[Conversation]):
        """Learns the turns, and every run of words in the system message, the turns and the answers."""
        self._turns, self._runs = set(), set()
        for conversation in conversations:
            self._turns |= {turn_hash(turn) for turn in conversation.turns}
            self._runs |= {run for text in conversation.texts() for run in _runs(text)}

    @classmethod
    def read(cls, paths: Sequence[str | os.PathLike[str]]) -> Self:
        """Reads the questions in prompt files; no file is fine.

        Raises:
          ValueError, OSError: a file cannot be read as prompts.
        """
        return cls(read_prompts(paths) if paths else ())

    def reason(self, conversation: Conversation) -> str | None:
        """Says why a conversation must be left out; `None` if it need not."""
        if not self._turns.isdisjoint(map(turn_hash, conversation.turns)):
            return "shares a turn with an excluded one"
        if any(not self._runs.isdisjoint(_runs(text)) for text in conversation.texts()):
            return f"shares {RUN} words with an excluded one"
        return None


def hash_lines(conversations: Iterable[Conversation]) -> bytes:
    """Returns the compressed list of all turns' hashes, a line each; the same bytes for the same turns."""
    lines = "".join(f"{turn_hash(turn)}\n" for conversation in conversations for turn in conversation.turns)
    return gzip.compress(lines.encode(), mtime=0)


def _runs(text: str) -> set[tuple[str, ...]]:
    """Returns the runs of words in a text."""
    words = _WORD.findall(normalize(text))
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
