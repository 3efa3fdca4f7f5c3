"""Divides a model's text, while it comes, into thinking, content and calls of functions.

<think>\\nI add.\\n</think>\\n\\nLet me see.\\n<tool_call>\\n{"name": "add", "arguments": {"x": 1}}\\n</tool_call>
       reasoning            content                             name              arguments

White space around the marks belongs to nothing. Text that only looks like a call is content.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxspec.serving.calls import CallReader
from jaxspec.serving.families import Family, Tags

# White space, which belongs to nothing after a call.
_SPACE = " \t\r\n"


class Delta(NamedTuple):
    """Holds a piece of an answer.

    Attributes:
      kind: "reasoning" or "content"; "name", which begins a call, or "arguments", a piece of those of the last call.
      text: the piece.
      place: where it begins in the model's text; of calls, 0.

    Example:
        >>> from jaxspec.serving.reader import Delta
        >>> Delta("content", "the sea").place
        0
    """

    kind: str
    text: str
    place: int = 0


class Reader:
    """Reads one text.

    Attributes:
      thought: where the thinking ended in the text; `None` before that.
      thinks: whether the text is within its thinking.

    Example:
        >>> from jaxspec.serving.families import tags_of
        >>> from jaxspec.serving.reader import Reader
        >>> reader = Reader(tags_of("</think>"), opened=False)
        >>> reader.push("<think>so</th") + reader.push("ink>yes")
        [Delta(kind='reasoning', text='so', place=7), Delta(kind='content', text='yes', place=17)]
    """

    def __init__(
        self,
        tags: Tags | None = None,
        family: Family | None = None,
        *,
        opened: bool = False,
        schemas: Mapping[str, Any] | None = None,
        most_calls: int | None = None,
    ) -> None:
        """Takes what may come.

        Args:
          tags: the marks around thinking; `None` if there is none.
          family: the notation of calls; `None` if there are none.
          opened: whether the prompt has opened the thinking.
          schemas: the schema of the arguments of each function, by name.
          most_calls: the number of calls after which further ones are dropped; `None` means any number.
        """
        self._tags, self._family, self._schemas = tags, family, schemas or {}
        self._rest, self._at, self._skipped = "", 0, ""
        self._call: CallReader | None = None
        self._raw, self._seen = "", 0
        self._spoken = False
        self._names, self._most = 0, most_calls
        self.thought: int | None = None
        self._mode: Callable[[list[Delta], bool], None] = self._content
        if tags is not None:
            self._mode, self._skipped = (self._thinking, "\n") if opened else (self._before, "")

    @property
    def thinks(self) -> bool:
        return self._mode == self._thinking

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """Adds text, and returns what it made certain; with `last`, everything that was held back too."""
        self._rest += text
        found: list[Delta] = []
        before: Any = None
        while before != (self._mode, len(self._rest)):
            before = (self._mode, len(self._rest))
            self._mode(found, last)
        return merged(self._few(found))

    def _few(self, found: Iterable[Delta]) -> list[Delta]:
        """Drops calls beyond the allowed number."""
        kept = []
        for one in found:
            self._names += one.kind == "name"
            if one.kind in ("reasoning", "content") or self._most is None or self._names <= self._most:
                kept.append(one)
        return kept

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        self._at += len(taken)
        return taken

    def _say(self, found: list[Delta], kind: str, count: int) -> None:
        """Passes on text, without the white space after a mark."""
        if self._skipped:
            size = min(len(self._rest) - len(self._rest.lstrip(self._skipped)), count)
            self._take(size)
            count -= size
        if count > 0:
            place, self._skipped = self._at, ""
            found.append(Delta(kind, self._take(count), place))

    def _before(self, found: list[Delta], last: bool) -> None:
        """Waits until it is known whether the text begins with thinking."""
        assert self._tags is not None
        text = self._rest.lstrip()
        if text.startswith(self._tags.start):
            self._take(len(self._rest) - len(text) + len(self._tags.start))
            self._mode, self._skipped = self._thinking, "\n"
        elif last or not self._tags.start.startswith(text):
            self._mode = self._content

    def _thinking(self, found: list[Delta], last: bool) -> None:
        assert self._tags is not None
        at = self._rest.find(self._tags.end)
        if at >= 0:
            self._say(found, "reasoning", len(self._rest[:at].rstrip("\n")))
            self._take(self._rest.find(self._tags.end) + len(self._tags.end))
            self.thought, self._mode, self._skipped = self._at, self._content, "\n"
        else:
            self._say(found, "reasoning", len(self._rest) if last else self._certain([self._tags.end], "\n"))

    def _content(self, found: list[Delta], last: bool) -> None:
        family = self._family
        if family is None:
            self._say(found, "content", len(self._rest))
            return
        lead = len(self._rest) - len(self._rest.lstrip())
        bare = bool(family.bare) and not self._spoken
        if bare and lead == len(self._rest) and not last:
            return
        at = self._rest.find(family.begin)
        mark = len(family.begin)
        if bare and self._rest[lead:].startswith(family.bare):
            at, mark = lead, 0
        if at >= 0:
            text = self._rest[:at].rstrip()
            self._spoken |= bool(text)
            self._say(found, "content", len(text))
            self._raw = self._take(self._rest.find(family.bare) if mark == 0 else self._rest.find(family.begin) + mark)
            assert family.reader is not None
            self._call, self._seen, self._mode = family.reader(self._schemas), 0, self._calling
            return
        count = len(self._rest) if last else self._certain([family.begin], None)
        self._spoken |= bool(self._rest[:count].strip())
        self._say(found, "content", count)

    def _calling(self, found: list[Delta], last: bool) -> None:
        call = self._call
        assert call is not None
        start = self._at - len(self._raw)
        for count, char in enumerate(self._rest, 1):
            call.push(char)
            if call.done or call.failed:
                self._raw += self._take(count)
                break
        else:
            self._raw += self._take(len(self._rest))
        found += [Delta(*one) for one in call.news[self._seen :]]
        self._seen = len(call.news)
        if call.done:
            self._call, self._mode = None, self._after
        elif call.failed or (last and not call.news):
            found.append(Delta("content", self._raw, start))
            self._call, self._mode, self._spoken, self._skipped = None, self._content, True, ""

    def _after(self, found: list[Delta], last: bool) -> None:
        """Drops the mark after a call, and white space."""
        family = self._family
        assert family is not None
        self._skipped = _SPACE
        self._take(len(self._rest) - len(self._rest.lstrip()))
        mark = family.end or family.between.strip()
        if mark and self._rest.startswith(mark):
            self._take(len(mark))
            self._mode, self._spoken = self._content, not family.bare
        elif last or not mark or (self._rest and not mark.startswith(self._rest)):
            self._mode, self._spoken = self._content, True

    def _certain(self, marks: Sequence[str], space: str | None) -> int:
        """Returns the number of characters that no later text can make part of a mark, or of the space before it."""
        text = self._rest
        longest = min(len(text), max(map(len, marks)) - 1)
        sizes = (size for size in range(longest, 0, -1) if any(mark.startswith(text[-size:]) for mark in marks))
        return len(text[: len(text) - next(sizes, 0)].rstrip(space))


def merged(found: Iterable[Delta]) -> list[Delta]:
    """Joins adjacent pieces of one kind."""
    merged: list[Delta] = []
    for one in found:
        last = merged[-1] if merged else None
        joins = last is not None and last.kind == one.kind and one.kind != "name"
        if last is not None and joins and (one.kind == "arguments" or last.place + len(last.text) == one.place):
            merged[-1] = last._replace(text=last.text + one.text)
        else:
            merged.append(one)
    return merged
