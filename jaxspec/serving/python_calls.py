"""Reads calls of functions in Python's notation: `[f(x=1), g()]`, or one a line; each call comes as a whole."""

import ast
import re
from collections.abc import Container
from typing import Any

from jaxspec.checkpoints.call_arguments import json_text
from jaxspec.serving.calls import json_of

_LONGEST = 256  # characters of a name
# What a name of an argument may be; JSON allows any text.
NAME = re.compile(r"[^\s=(),\"'\[\]{}]+")
_ARGUMENT = re.compile(rf"\s*({NAME.pattern})\s*=(.*)", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


class PythonCalls:
    """Reads calls whose arguments are named, with values in Python's notation or in JSON.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.python_calls import PythonCalls
        >>> calls = PythonCalls({"add", "now"})
        >>> for char in "[add(x=1, y='a'), now()]":
        ...     calls.push(char)
        >>> calls.news[:2], calls.done
        ([('name', 'add'), ('arguments', '{"x": 1, "y": "a"}')], True)
    """

    def __init__(self, names: Container[str], end: str = "") -> None:
        """Takes what may come.

        Args:
          names: the names of the functions: a text with another name is no call.
          end: the mark after calls that are in no list; empty if they are in one.
        """
        self.news: list[tuple[str, str]] = []
        self.done = self.failed = False
        self._names, self._end = names, end
        self._listed = False
        self._text, self._quote, self._escaped, self._depth = "", "", False, 0

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        if not self._text:
            self._between(char)
            return
        self._text += char
        if self._end and self._text[0] == self._end[0]:
            self._close()
        elif self._depth == 0:
            self._name(char)
        else:
            self._within(char)

    def _between(self, char: str) -> None:
        """Takes a character outside of calls."""
        if char == "[" and not self._end and not self._listed:
            self._listed = True
        elif char == "]" and self._listed and self.news:
            self.done = True
        elif (char == "," and self.news) or char.isspace():
            pass
        elif ((char.isalnum() or char == "_") and (self._listed or self._end)) or char == self._end[:1]:
            self._text = char
        else:
            self._give_up()

    def _close(self) -> None:
        """Takes a part of the mark after the calls."""
        if self._text == self._end and self.news:
            self.done = True
        elif not self._end.startswith(self._text) or self._text == self._end:
            self._give_up()

    def _name(self, char: str) -> None:
        if char == "(" and self._text[:-1].strip() in self._names:
            self._depth = 1
        elif len(self._text) > _LONGEST or not (char.isalnum() or char in "_.-"):
            self._give_up()

    def _within(self, char: str) -> None:
        """Takes a character of the arguments."""
        if self._quote:
            closes = char == self._quote and not self._escaped
            self._escaped = char == "\\" and not self._escaped
            self._quote = "" if closes else self._quote
        elif char in "\"'":
            self._quote = char
        elif char in _OPENING:
            self._depth += 1
        elif char in _CLOSING:
            self._depth -= 1
            if self._depth == 0:
                self._call()

    def _call(self) -> None:
        name, _, inner = self._text[:-1].partition("(")
        self._text = ""
        try:
            arguments = json_text(dict(_argument(one) for one in _divided(inner)))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            self._give_up()
            return
        self.news += [("name", name.strip()), ("arguments", arguments)]

    def _give_up(self) -> None:
        """Ends after calls; without any, it is no call."""
        self.done, self.failed = bool(self.news), not self.news


def _divided(text: str) -> list[str]:
    """Returns the arguments of a call."""
    parts, start, depth, quote, escaped = [], 0, 0, "", False
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        elif char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        else:
            depth += (char in _OPENING) - (char in _CLOSING)
    last = text[start:]
    return [*parts, last] if last.strip() else parts


def _argument(text: str) -> tuple[str, Any]:
    """Returns the name and the value of an argument.

    Raises:
      ValueError, SyntaxError, RecursionError, MemoryError: it is no literal value with a name.
    """
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        raise ValueError("an argument must have a name")
    value = found[2].strip()
    try:
        return found[1], json_of(value)
    except ValueError:
        return found[1], ast.literal_eval(value)
