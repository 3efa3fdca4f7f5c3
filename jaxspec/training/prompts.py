"""Reads prompt files, one conversation a line, and keeps evaluation questions out of training data.

Texts are compared after normalization: Unicode's NFKC, lower case, and each run of white space as one space. Turns are
compared by hash, so that a list of hashes can be published with a trained model without revealing the questions. Longer
overlaps are found by runs of 13 words (the n-gram overlap of Brown et al. 2005.14165, appendix C).
"""

import dataclasses
import gzip
import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jaxspec.checkpoints.chat_template import check_message, text_of
from jaxspec.io.files import decode_text, json_value, reading

UNSTATED = "unstated"
TURNS_FILE = "prompts.sha256.gz"
RUN = 13
_FORMS = ("prompt", "turns", "messages", "conversations")
# Roles by their names in ShareGPT's files.
_SHARED = {"human": "user", "observation": "tool"} | dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant")
_IN_TURN = (("user", "tool"), ("assistant",))
_EXAMPLE = '{"turns": ["Hello", "Say that in French."], "category": "chat"}'
_HALF = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Holds a conversation: the user's turns, and any answers that are given instead of generated.

    Attributes:
      turns: the user's messages, or results of tools that are called, at least one.
      answers: the assistant's answers to the first turns; the target answers the others.
      system: the system message, or `None`.
      category: the kind of question.
      source: where it comes from.
      license: its license.
      references: good answers to the first turns, empty if there are none; results are compared with them, and no model
        sees them.
      given: all messages as given, if texts do not say all: with calls of tools and their results.
    """

    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()
    system: str | None = None
    category: str = UNSTATED
    source: str = UNSTATED
    license: str = UNSTATED
    references: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    given: tuple[Mapping[str, Any], ...] = dataclasses.field(default=(), repr=False, hash=False)

    def texts(self) -> tuple[str, ...]:
        """Returns all given texts: the system message, the turns and the answers."""
        return (*(() if self.system is None else (self.system,)), *self.turns, *self.answers)

    def messages(self, answers: Sequence[str]) -> list[Mapping[str, Any]]:
        """Returns the messages up to the turn after these answers, for a chat template."""
        if self.given:
            places = [place for place, one in enumerate(self.given) if one["role"] == "assistant"]
            return list(self.given[: [*places, None][len(answers)]])
        messages: list[Mapping[str, Any]] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn, answer in zip(self.turns, (*answers, None), strict=False):
            messages.append({"role": "user", "content": turn})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        return messages

    def answer(self, turn: int) -> Mapping[str, Any]:
        """Returns the message of a given answer."""
        said = [one for one in self.given if one["role"] == "assistant"]
        return said[turn] if said else {"role": "assistant", "content": self.answers[turn]}


def read_prompts(paths: Sequence[str | os.PathLike[str]]) -> list[Conversation]:
    """Reads files of JSON lines, one after the other.

    A line is an object with one of
      * `"prompt"`: a user's message;
      * `"turns"`: the user's messages in turn, and optionally `"answers"`, one for each turn;
      * `"messages"`: dictionaries with `role` and `content`: at most one of the system first, then user and assistant
        in turn. The assistant's messages are used unchanged. Content is a text, or a list of parts
        `{"type": "text", "text": ...}`. A message with `tool_calls` may have none; messages of `tool` may follow it;
      * `"conversations"`: the same, or dictionaries with `from` and `value`, as in ShareGPT's files.
    `"system"` is the system message, if it is not among these.
    `"category"`, `"source"` and `"license"` are strings; `"reference"` is a good answer, or one for each of the first
    turns, a string or a list of its parts; other keys are ignored.

    Args:
      paths: the files.

    Returns:
      The conversations of all files, in order.

    Raises:
      FileFormatError: a line is not such an object; the message names the file and the line.
      ValueError: there is no line.
      OSError: a file cannot be read.
    """
    conversations = [conversation for path in paths for conversation in _read(Path(path))]
    if not conversations:
        names = ", ".join(os.fspath(path) for path in paths) or "no file"
        raise ValueError(f"there is no prompt in {names}; expected JSON lines such as {_EXAMPLE}")
    return conversations


def _read(path: Path) -> Iterator[Conversation]:
    """Reads one file; errors name its line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            with reading(path, f"line {number}", advice=""):
                conversation = _parse(json_value(decode_text(line)))
            yield conversation


def _parse(fields: Any) -> Conversation:
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected an object such as {_EXAMPLE}, got {_kind(fields)}")
    forms = [name for name in _FORMS if name in fields]
    if len(forms) != 1:
        raise ValueError(f"expected one of {', '.join(_FORMS)}, got {' and '.join(forms) or sorted(fields)}")
    if "answers" in fields and forms != ["turns"]:
        raise ValueError(f"answers belong to turns, got {forms[0]}; put them into messages, or pass turns")
    labels: dict[str, Any] = {
        name: _string(fields[name], name) for name in ("category", "source", "license") if name in fields
    }
    labels["references"] = _references(fields.get("reference"))
    # As in many of ShareGPT's files, where it is often null or empty.
    system = _string(fields.get("system") or "", "system") or None
    if forms == ["prompt"]:
        return Conversation((_said(fields["prompt"], "prompt"),), system=system, **labels)
    if forms in (["messages"], ["conversations"]):
        return _from_messages(fields[forms[0]], forms[0], system, labels)
    turns = _strings(fields["turns"], "turns")
    answers = _strings(fields["answers"], "answers") if "answers" in fields else ()
    if answers and len(answers) != len(turns):
        raise ValueError(f"expected one answer a turn, got {len(answers)} for {len(turns)}")
    return Conversation(turns, answers, system, **labels)


def _from_messages(messages: Any, form: str, system: str | None, labels: dict[str, Any]) -> Conversation:
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise ValueError(f"{form} must be a list of objects with role and content")
    said = [_message(message) for message in messages]
    if system is not None:
        if said and said[0].get("role") == "system":
            raise ValueError("system is next to a message of the system; leave one out")
        said.insert(0, {"role": "system", "content": system})
    for message in said:
        check_message(message)
        # Calls often have an empty text next to them, and some tools return nothing.
        if not message.get("tool_calls") and message["role"] != "tool":
            _said(text_of(message), "content")
    given = tuple(said) if any("tool_calls" in one or one["role"] == "tool" for one in said) else ()
    system = text_of(said.pop(0)) if said and said[0]["role"] == "system" else None
    # The results of several tools are one turn.
    turns = [list(each) for _, each in itertools.groupby(said, lambda one: (one["role"] == "tool") or id(one))]
    roles = [each[0]["role"] for each in turns]
    if not roles or any(role not in _IN_TURN[place % 2] for place, role in enumerate(roles)):
        raise ValueError(f"{form} must alternate user and assistant, after at most one of system, got {roles}")
    texts = ["\n".join(map(text_of, each)) for each in turns]
    return Conversation(tuple(texts[0::2]), tuple(texts[1::2]), system, **labels, given=given)


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a message with `role` and `content`, also for one with `from` and `value`."""
    if "from" not in message or "role" in message:
        return message
    name = _string(message["from"], "from")
    return {"role": _SHARED.get(name, name), "content": message.get("value")}


def _references(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError(f"reference must be a string or a list of strings, got {_kind(value)}")
    return tuple(_reference(one, f"reference[{place}]") for place, one in enumerate(value))


def _reference(value: Any, name: str) -> str:
    """Reads a string or a list of its parts, as in Spec-Bench's questions about documents."""
    return "; ".join(_string(part, name) for part in value) if isinstance(value, list) else _string(value, name)


def _strings(values: Any, name: str) -> tuple[str, ...]:
    """Reads a list of nonempty strings."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} must be a list of at least one string, got {_kind(values)}")
    return tuple(_said(value, f"{name}[{place}]") for place, value in enumerate(values))


def _said(value: Any, name: str) -> str:
    """Reads a nonempty string."""
    if not _string(value, name).strip():
        raise ValueError(f"{name} is empty; leave the line out")
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {_kind(value)}")
    if half := _HALF.search(value):
        raise ValueError(f"{name} must be of whole characters, got half of a surrogate pair at {half.start()}")
    return value


def _kind(value: Any) -> str:
    return "an empty list" if value == [] else type(value).__name__


def normalize(text: str) -> str:
    """Returns the normalized text, for comparisons of turns."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def turn_hash(text: str) -> str:
    """Returns the SHA-256 of the normalized text, in hexadecimal."""
    return hashlib.sha256(normalize(text).encode()).hexdigest()


class Exclusion:
    """Lists the questions of an evaluation, which no training prompt may share."""

    def __init__(self, conversations: Iterable[Conversation]):
        """Records the turns, and every run of words in the system messages, the turns and the answers."""
        self._turns, self._runs = set(), set()
        for conversation in conversations:
            self._turns |= {turn_hash(turn) for turn in conversation.turns}
            self._runs |= {run for text in conversation.texts() for run in _runs(text)}

    @classmethod
    def read(cls, paths: Sequence[str | os.PathLike[str]]) -> Self:
        """Reads the questions in prompt files; without files, nothing is excluded.

        Raises:
          ValueError, OSError: a file cannot be read as prompts.
        """
        return cls(read_prompts(paths) if paths else ())

    def reason(self, conversation: Conversation) -> str | None:
        """Returns why a conversation must be left out; `None` if it may be used."""
        if not self._turns.isdisjoint(map(turn_hash, conversation.turns)):
            return "shares a turn with an excluded one"
        if any(not self._runs.isdisjoint(_runs(text)) for text in conversation.texts()):
            return f"shares {RUN} words with an excluded one"
        return None


def hash_lines(conversations: Iterable[Conversation]) -> bytes:
    """Returns the compressed list of all turns' hashes, one per line; equal turns give equal bytes."""
    lines = "".join(f"{turn_hash(turn)}\n" for conversation in conversations for turn in conversation.turns)
    return gzip.compress(lines.encode(), mtime=0)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(normalize(text))
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
