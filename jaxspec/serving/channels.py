"""Reads a text that is divided into messages of channels, which is how gpt-oss writes.

<|channel|>analysis<|message|>I add.<|end|>                                                        reasoning
<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"x": 1}      a call
<|start|>assistant<|channel|>final<|message|>It is 2.                                              content
"""

import re
from collections.abc import Container, Sequence
from typing import Any

from jaxspec.serving.reader import Delta, Reader

_MESSAGE, _CHANNEL, _START, _END = "<|message|>", "<|channel|>", "<|start|>", "<|end|>"
# The texts that the reader looks for.
MARKS = (_MESSAGE, _CHANNEL, _START, _END, "<|constrain|>", "<|call|>", "<|return|>")
_ENDS = (_END, "<|call|>", "<|return|>", _START, _CHANNEL)
# How a header begins; the prompt has the start of the first one.
_HEADERS = (_CHANNEL, _START, "to=")
# The beginnings of those, at which a text may end.
_CUT_HEADERS = {mark[:count] for mark in _HEADERS for count in range(1, len(mark))}
_LONGEST = 512  # characters of a header
_FREE = r"([^<]|<[^|])*"


def turn_parts(answers: Sequence[Any]) -> list[Any]:
    """Returns the parts of the grammar of a whole turn, whose thinking is free.

    Args:
      answers: parts of calls, or of messages in the final channel; one of them ends the turn.
    """
    thinking = [f"{_CHANNEL}analysis{_MESSAGE}", {"regex": _FREE}, f"{_END}{_START}assistant"]
    return [{"any": [thinking, ""]}, {"any": list(answers)}]


def final_part(part: Any) -> list[Any]:
    """Returns the parts of the grammar of a message in the final channel."""
    return [f"{_CHANNEL}final{_MESSAGE}", part]


class ChannelReader(Reader):
    """Reads one text; has the methods of `Reader`. A text without any header is content.

    Example:
        >>> from jaxspec.serving.channels import ChannelReader
        >>> text = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes"
        >>> [(one.kind, one.text) for one in ChannelReader(()).push(text)]
        [('reasoning', 'so'), ('content', 'yes')]
    """

    def __init__(self, names: Container[str], most_calls: int | None = None) -> None:
        """Takes the names of the functions: a call of another one is content."""
        super().__init__(most_calls=most_calls)
        self._functions, self._kind = names, "content"
        self._empty = True  # no arguments have come
        self._mode = self._header

    @property
    def thinks(self) -> bool:
        return self._kind == "reasoning"

    def _header(self, found: list[Delta], last: bool) -> None:
        """Takes what is before a message."""
        text = self._rest.lstrip()
        begins = any(one.startswith(text[: len(one)]) for one in _HEADERS)
        at = self._rest.find(_MESSAGE)
        if begins and text and 0 <= at < _LONGEST:
            self._open(self._take(at + len(_MESSAGE)), found)
            self._mode = self._body
        elif not begins or len(text) >= _LONGEST or (last and text in _CUT_HEADERS):
            if begins:  # the mark is of no header
                place = self._at
                found.append(Delta("content", self._take(len(self._rest) - len(text) + 1), place))
            self._kind, self._mode = "content", self._body
        elif last:
            self._take(len(self._rest))

    def _open(self, header: str, found: list[Delta]) -> None:
        """Takes a header."""
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        called = re.search(r"\bto=functions\.([^\s<]+)", header)
        if called is not None and called[1] in self._functions:
            self._kind, self._empty = "arguments", True
            found.append(Delta("name", called[1]))
            return
        self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"

    def _body(self, found: list[Delta], last: bool) -> None:
        """Takes the text of a message."""
        places = [(place, mark) for mark in _ENDS if (place := self._rest.find(mark)) >= 0]
        at, mark = min(places, default=(-1, ""))
        count = at if at >= 0 else len(self._rest) if last else self._certain(_ENDS, "")
        if self._kind == "arguments":
            text = self._take(count)
            self._empty = self._empty and not text.strip()
            ends_empty = self._empty and (last or at >= 0)
            found.append(Delta("arguments", "{}" if ends_empty else "" if self._empty else text))
            self._empty = self._empty and not ends_empty
        elif count > 0:
            place = self._at
            found.append(Delta(self._kind, self._take(count), place))
        if at < 0:
            return
        if mark not in (_START, _CHANNEL):  # those begin the next header
            self._take(len(mark))
        if self._kind == "reasoning":
            self.thought = self._at
        self._kind, self._mode = "content", self._header
