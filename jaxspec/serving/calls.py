"""Reads calls of functions from a model's text, character by character, in the notations of several model families."""

import json
from collections.abc import Container
from typing import Any, Protocol

from jaxspec.checkpoints.call_arguments import is_text, json_text

_SPACE = " \t\r\n"
_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
# Further members of a call, whose values are dropped.
_OTHERS = ("type", "id")
# The largest number of characters of a name.
_LONGEST = 256


class CallReader(Protocol):
    """Describes what reads one call or several.

    Attributes:
      news: what is new, oldest first: a `"name"` begins a call, pieces of its `"arguments"` follow.
      done: whether the calls are complete.
      failed: whether the text is not a call.
    """

    news: list[tuple[str, str]]
    done: bool
    failed: bool

    def push(self, char: str) -> None:
        """Adds a character."""
        ...


class Value:
    """Collects the text of one JSON value.

    Attributes:
      text: the text.
      ended: whether it is complete.

    Example:
        >>> from jaxspec.serving.calls import Value
        >>> value = Value()
        >>> [value.push(char) for char in "{}"], value.text, value.ended
        ([True, True], '{}', True)
    """

    def __init__(self) -> None:
        self.text, self.ended = "", False
        self._depth, self._quoted, self._escaped = 0, False, False

    def push(self, char: str) -> bool:
        """Adds a character; returns whether it belongs to the value."""
        if (self.text or char)[0] not in '{["':  # a number or a word, which ends before what follows it
            self.ended = char in ",}]" + _SPACE
            self.text += "" if self.ended else char
            return not self.ended
        self.text += char
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self.ended = not self._quoted and self._depth == 0
        return True


class JsonCall:
    """Reads one call, an object with a name and arguments, whose text is passed on as it was written.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.calls import JsonCall
        >>> call = JsonCall({"add"})
        >>> for char in '{"name": "add", "arguments": {"x": 1}}':
        ...     call.push(char)
        >>> call.news[0], "".join(text for kind, text in call.news[1:]), call.done
        (('name', 'add'), '{"x": 1}', True)
    """

    def __init__(self, names: Container[str]) -> None:
        """Takes the names of the functions: an object with another name, or with more members, is no call."""
        self.news: list[tuple[str, str]] = []
        self.done = self.failed = False
        self._names = names
        self._key: str | None = None
        self._value: Value | None = None
        self._expects = "{"
        self._name: str | None = None  # held back until there are arguments, or the end
        self._held: str | None = None  # arguments before the name
        self._given = False

    @property
    def begun(self) -> bool:
        """Whether the object has begun."""
        return self._expects != "{"

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        if self._value is not None and (self._take(self._value, char) or self.done or self.failed):
            return
        if char in _SPACE:
            return
        if self._expects == ":" and char == ":":
            self._expects = "value"
        elif self._expects in ("key", "value"):
            self._begin(char)
        elif (self._expects, char) in (("{", "{"), (",", ",")):
            self._expects = "key"
        elif self._expects == "," and char == "}":
            self._close()
        else:
            self._fail()

    def _begin(self, char: str) -> None:
        if self._expects == "key" and char != '"':
            self._close() if char == "}" else self._fail()
            return
        if char in ",:}]":
            self._fail()
            return
        self._value = Value()
        self._take(self._value, char)

    def _take(self, value: Value, char: str) -> bool:
        """Adds a character to the key or value; returns whether it belongs to it."""
        belongs = value.push(char)
        streams = self._expects == "value" and self._key in _ARGUMENTS and value.text[0] == "{"
        if streams and belongs:
            self._pass_on(char)
        if value.ended:
            self._value = None
            self._finish(value.text, streamed=streams)
        return belongs

    def _finish(self, text: str, *, streamed: bool) -> None:
        """Ends a key or a value."""
        try:
            found = None if streamed else json_of(text)
        except (ValueError, RecursionError):
            self._fail()
            return
        if self._expects == "key":
            self._key, self._expects = found, ":"
            known = self._key in (*_NAMES, *_ARGUMENTS, *_OTHERS)
            if not known or (self._given and self._key in _ARGUMENTS):
                self._fail()
            return
        self._expects = ","
        if self._key in _ARGUMENTS and not streamed:
            self._other_arguments(found)
        elif self._key in _NAMES:
            if not isinstance(found, str) or found not in self._names or self._name is not None:
                self._fail()
                return
            self._name = found
            if self._held is not None:
                self.news += [("name", found), ("arguments", self._held)]

    def _other_arguments(self, found: Any) -> None:
        """Takes arguments that are no object: none, or the text of an object."""
        if isinstance(found, str):
            try:
                inner = json_of(found)
            except (ValueError, RecursionError):
                inner = None
            if isinstance(inner, dict):
                self._pass_on(found if is_text(found) else json_text(inner))
                return
        if found is not None and found != "":
            self._fail()

    def _pass_on(self, text: str) -> None:
        self._given = True
        if self._name is None:
            self._held = (self._held or "") + text
            return
        if not self.news:
            self.news.append(("name", self._name))
        self.news.append(("arguments", text))

    def _close(self) -> None:
        if self._name is None:
            self._fail()
            return
        self.done = True
        if not self._given:
            self.news += [("name", self._name), ("arguments", "{}")]

    def _fail(self) -> None:
        """Gives up; a call whose name was passed on has ended instead."""
        self.done, self.failed = bool(self.news), not self.news


class ListedCalls:
    """Reads what follows `[TOOL_CALLS]`: a list of calls, or a name, `[ARGS]` and arguments.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.calls import ListedCalls
        >>> calls = ListedCalls({"add"})
        >>> for char in 'add[ARGS]{"x": 1}':
        ...     calls.push(char)
        >>> calls.news[0], calls.done
        (('name', 'add'), True)
    """

    def __init__(self, names: Container[str]) -> None:
        """Takes the names of the functions: a text with another name is no call."""
        self.news: list[tuple[str, str]] = []
        self.done = self.failed = False
        self._names = names
        self._call: JsonCall | None = None
        self._value: Value | None = None
        self._name: str | None = None
        self._count = 0

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        if self._call is not None:
            self._listed(self._call, char)
        elif self._value is not None:
            if self._value.push(char):
                self.news.append(("arguments", char))
            self.done = self._value.ended
        elif self._name is None and char == "[":
            self._call = JsonCall(self._names)
        elif self._name is not None or char not in _SPACE:
            self._named(char)

    def _named(self, char: str) -> None:
        """Adds a character of a name or of the marks after it."""
        if char != "{":
            self._name = (self._name or "") + char
            self.failed = len(self._name) > _LONGEST
            return
        name = (self._name or "").replace("[CALL_ID]", "[ARGS]").split("[ARGS]")[0].strip()
        self.failed = name not in self._names
        if not self.failed:
            self._value = Value()
            self._value.push(char)
            self.news += [("name", name), ("arguments", char)]

    def _listed(self, call: JsonCall, char: str) -> None:
        """Adds a character of a list of calls."""
        if call.done:
            if char == ",":
                self._call = JsonCall(self._names)
            self.done = char == "]"
            return
        if char == "]" and self._count == 0 and not call.begun:
            self.failed = True  # an empty list
            return
        before = len(call.news)
        call.push(char)
        self.news += call.news[before:]
        self._count += call.done
        self.failed = call.failed and self._count == 0
        self.done = call.failed and self._count > 0


def json_of(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: it is not JSON; `NaN` and `Infinity` are not.

    Example:
        >>> from jaxspec.serving.calls import json_of
        >>> json_of('{"x": 1}')
        {'x': 1}
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
