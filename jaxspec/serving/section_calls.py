"""Reads calls of functions in a section, each between marks: a name, then arguments in JSON, passed on as written.

<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

import re
from collections.abc import Container
from typing import NamedTuple

from jaxspec.serving.calls import Value

# The largest number of characters between an opening mark and the arguments.
_LONGEST = 256


class Section(NamedTuple):
    """Holds the marks of a section.

    Attributes:
      call: opens a call.
      header: matches the text from there to the arguments, with the `name`.
      call_end: closes a call.
      end: closes the section.

    Example:
        >>> from jaxspec.serving.section_calls import KIMI
        >>> KIMI.header.fullmatch("functions.add:0<|tool_call_argument_begin|>")["name"]
        'add'
    """

    call: str
    header: re.Pattern[str]
    call_end: str
    end: str


DEEPSEEK = Section(
    "<｜tool▁call▁begin｜>",
    re.compile(r"\s*(function<｜tool▁sep｜>(?P<typed>[^<\n]+)\n+```json|(?P<name>[^<\n]+)<｜tool▁sep｜>)\s*"),
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
KIMI = Section(
    "<|tool_call_begin|>",
    re.compile(r"\s*(functions\.)?(?P<name>[^<\s]+?)(:[0-9]+)?\s*<\|tool_call_argument_begin\|>\s*"),
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


class SectionCalls:
    """Reads the calls of a section, whose opening mark was read.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.section_calls import KIMI, SectionCalls
        >>> calls = SectionCalls({"add"}, KIMI)
        >>> for char in '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>':
        ...     calls.push(char)
        >>> calls.news[0], "".join(text for kind, text in calls.news[1:])
        (('name', 'add'), '{"x": 1}')
    """

    def __init__(self, names: Container[str], section: Section) -> None:
        """Takes the names of the functions: a text with another name is no call."""
        self.news: list[tuple[str, str]] = []
        self.done = self.failed = False
        self._names, self._section = names, section
        self._text = ""
        self._value: Value | None = None
        self._awaits = "call"

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        if self._value is not None:
            self._value.push(char)
            self.news.append(("arguments", char))
            if self._value.ended:
                self._value, self._awaits = None, "end"
            return
        self._text += char
        if self._awaits == "call":
            self._between()
        elif self._awaits == "end":
            if self._text.endswith(self._section.call_end):
                self._text, self._awaits = "", "call"
            elif self._text.endswith(self._section.end):
                self.done = True
        elif char == "{":
            self._open(self._text[:-1])
        elif self._text.endswith(self._section.call_end):  # no arguments were written
            self._open(self._text.removesuffix(self._section.call_end))
            if not self.failed and self._value is not None:
                self.news.append(("arguments", "}"))
                self._value, self._awaits = None, "call"
        elif len(self._text) > _LONGEST:
            self._give_up()

    def _between(self) -> None:
        """Takes the text before a call, or before the end of the section."""
        text = self._text.strip()
        if text == self._section.call:
            self._text, self._awaits = "", "header"
        elif text == self._section.end and self.news:
            self.done = True
        elif not any(mark.startswith(text) for mark in (self._section.call, self._section.end)):
            self._give_up()

    def _open(self, header: str) -> None:
        """Begins the arguments of the call that a header names."""
        found = self._section.header.fullmatch(header)
        named = found.groupdict() if found else {}
        name = (named.get("typed") or named.get("name") or "").strip()
        if name not in self._names:
            self._give_up()
            return
        self._text, self._value = "", Value()
        self._value.push("{")
        self.news += [("name", name), ("arguments", "{")]

    def _give_up(self) -> None:
        """Ends after calls; without any, it is no call."""
        self.done, self.failed = bool(self.news), not self.news
