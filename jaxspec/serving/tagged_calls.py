"""Reads calls of functions in tags, with a tag for each argument; each argument comes as a whole.

<function=add><parameter=x>1</parameter></function>                                 Qwen3-Coder, Seed-OSS
<invoke name="add"><parameter name="x">1</parameter></invoke>                       MiniMax, DeepSeek V3.2
add <arg_key>x</arg_key><arg_value>1</arg_value></tool_call>                        GLM
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxspec.checkpoints.call_arguments import json_text
from jaxspec.serving.calls import json_of

# The largest number of characters of a tag with a name, and of the space before it.
_LONGEST = 256


class Tags(NamedTuple):
    """Holds the tags of a call.

    Attributes:
      call: matches the tag that opens a call, with its `name`.
      argument: matches the tag that opens an argument, with its `key`, and perhaps whether it is `text`.
      value_end: closes an argument.
      call_end: closes a call.
      end: closes all calls; empty if something else reads it, after each call.

    Example:
        >>> from jaxspec.serving.tagged_calls import QWEN
        >>> QWEN.value_end
        '</parameter>'
    """

    call: re.Pattern[str]
    argument: re.Pattern[str]
    value_end: str
    call_end: str
    end: str = ""


def _named(prefix: str, end: str) -> Tags:
    """Returns tags whose names are attributes."""
    return Tags(
        re.compile(rf'<{prefix}invoke name="(?P<name>[^"]+)">'),
        re.compile(rf'<{prefix}parameter name="(?P<key>[^"]*)"( string="(?P<text>true|false)")?>'),
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
        end,
    )


QWEN = Tags(
    re.compile("<function=(?P<name>[^>]+)>"), re.compile("<parameter=(?P<key>[^>]*)>"), "</parameter>", "</function>"
)
MINIMAX = _named("", "</minimax:tool_call>")
DSML = _named("｜DSML｜", "</｜DSML｜function_calls>")


class Arguments:
    """Writes the arguments of a call as JSON.

    Attributes:
      news: what is new, as in `CallReader`.

    Example:
        >>> from jaxspec.serving.tagged_calls import Arguments
        >>> arguments = Arguments({"add": {}})
        >>> arguments.begin("add"), arguments.add("x", "1"), arguments.close()
        (None, None, None)
        >>> arguments.news
        [('name', 'add'), ('arguments', '{"x": 1'), ('arguments', '}')]
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        """Takes the schema of the arguments of each function, by name, which says what is text."""
        self.news: list[tuple[str, str]] = []
        self._schemas = schemas
        self._name, self._count = "", 0

    def begin(self, name: str) -> None:
        """Begins a call."""
        self._name, self._count = name, 0
        self.news.append(("name", name))

    def add(self, key: str, text: str, is_text: bool | None = None) -> None:
        """Adds an argument; `is_text` says whether it is a text, and without it the schema does."""
        if is_text is None:  # where the notation says what is text, it writes no lines around it
            text = text.removeprefix("\n").removesuffix("\n")
        value = text if (self._is_text(key) if is_text is None else is_text) else _read(text)
        before = ", " if self._count else "{"
        self.news.append(("arguments", f"{before}{json.dumps(key)}: {json_text(value)}"))
        self._count += 1

    def close(self) -> None:
        """Ends a call."""
        self.news.append(("arguments", "}" if self._count else "{}"))

    def _is_text(self, key: str) -> bool:
        """Returns whether the schema says that an argument is a text."""
        schema = self._schemas.get(self._name)
        found = (schema if isinstance(schema, dict) else {}).get("properties")
        one = found.get(key) if isinstance(found, dict) else None
        if not isinstance(one, dict) or "type" in one:
            return isinstance(one, dict) and one["type"] == "string"
        listed = one.get("enum", [one.get("const")])
        return isinstance(listed, list) and all(isinstance(value, str) for value in listed)


class TaggedCalls:
    """Reads calls whose names are within tags.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.tagged_calls import TaggedCalls
        >>> calls = TaggedCalls({"add": {}})
        >>> for char in "<function=add><parameter=x>1</parameter></function>":
        ...     calls.push(char)
        >>> calls.news
        [('name', 'add'), ('arguments', '{"x": 1'), ('arguments', '}')]
    """

    def __init__(self, schemas: Mapping[str, Any], tags: Tags = QWEN) -> None:
        """Takes the schema of the arguments of each function, by name; a text with another name is no call."""
        self.done = self.failed = False
        self._schemas, self._tags = schemas, tags
        self._arguments = Arguments(schemas)
        self.news = self._arguments.news
        self._text = ""
        self._within = False
        self._key: str | None = None
        self._is_text: bool | None = None

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        self._text += char
        if self._key is not None:
            if self._text.endswith(self._tags.value_end):
                self._arguments.add(self._key, self._text.removesuffix(self._tags.value_end), self._is_text)
                self._key, self._text = None, ""
        elif char == ">":
            self._tag(self._text.strip())
            self._text = ""
        elif not self._within:
            start = self._text.lstrip()[:1]
            if start not in ("", "<") or len(self._text) > _LONGEST:
                self._give_up()

    def _tag(self, tag: str) -> None:
        if not self._within:
            opening = self._tags.call.fullmatch(tag)
            name = opening["name"].strip() if opening else ""
            self._within = name in self._schemas
            self._arguments.begin(name) if self._within else self._give_up()
        elif argument := self._tags.argument.fullmatch(tag):
            found = argument.groupdict()
            self._key, said = found["key"].strip(), found.get("text")
            self._is_text = None if said is None else said == "true"
        elif tag == self._tags.call_end:
            self._arguments.close()
            self._within, self.done = False, not self._tags.end

    def _give_up(self) -> None:
        """Ends after calls, at the closing tag or a text; without any, it is no call."""
        self.done, self.failed = bool(self.news), not self.news


class KeyedCall:
    """Reads the name of a function, and a tag for each key and each value.

    Attributes:
      news, done, failed: as in `CallReader`.

    Example:
        >>> from jaxspec.serving.tagged_calls import KeyedCall
        >>> call = KeyedCall({"add": {}})
        >>> for char in "add<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>":
        ...     call.push(char)
        >>> call.news
        [('name', 'add'), ('arguments', '{"x": 1'), ('arguments', '}')]
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        """Takes the schema of the arguments of each function, by name; a text with another name is no call."""
        self.done = self.failed = False
        self._schemas = schemas
        self._arguments = Arguments(schemas)
        self.news = self._arguments.news
        self._text, self._key = "", ""
        self._ends: tuple[str, ...] = ("<arg_key>", "</tool_call>")

    def push(self, char: str) -> None:
        """Adds a character."""
        if self.done or self.failed:
            return
        self._text += char
        end = next((end for end in self._ends if self._text.endswith(end)), None) if char == ">" else None
        if end is not None:
            text, self._text = self._text.removesuffix(end), ""
            self._part(text, end)
        elif not self.news:
            self.failed = len(self._text) > _LONGEST

    def _part(self, text: str, end: str) -> None:
        """Takes the text before a tag: a name, a key, a value, or nothing."""
        if not self.news:
            name = text.strip()
            self.failed = name not in self._schemas
            if self.failed:
                return
            self._arguments.begin(name)
        if end == "<arg_key>":
            self._ends = ("</arg_key>",)
        elif end == "</arg_key>":
            self._key, self._ends = text.strip(), ("<arg_value>",)
        elif end == "<arg_value>":
            self._ends = ("</arg_value>",)
        elif end == "</arg_value>":
            self._arguments.add(self._key, text)
            self._ends = ("<arg_key>", "</tool_call>")
        else:
            self._arguments.close()
            self.done = True


def _read(text: str) -> Any:
    """Returns the value of a text, in the notation of JSON or, for three words, of Python; or the text."""
    words = {"True": True, "False": False, "None": None}
    if text.strip() in words:
        return words[text.strip()]
    try:
        found = json_of(text)
        json_text(found)
    except (ValueError, RecursionError):
        return text
    return found
