"""Reads a model's text as its tokenizer's response template says, with the parser of transformers."""

import functools
import logging
from collections.abc import Container, Mapping, Sequence
from typing import Any

from jaxspec.checkpoints.call_arguments import is_text, json_text
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.serving.calls import json_of
from jaxspec.serving.reader import Delta, Reader, merged

_LOGGER = logging.getLogger("jaxspec")
_REASONING = ("reasoning_content", "reasoning", "thinking")


class TemplateReader(Reader):
    """Reads one text; has the methods of `Reader`. Deltas have no place in the text, so it is -1.

    A call comes as a whole. Text that the template cannot read is content, and so is a call of what is none of the
    functions.
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        prompt: str,
        tools: Sequence[Mapping[str, Any]] | None,
        most_calls: int | None = None,
    ) -> None:
        """Takes the template, the text of the prompt, and the functions.

        If the parser fails over the prompt, all text is content.
        """
        super().__init__(most_calls=most_calls)
        self._functions = {one["function"]["name"] for one in tools or ()}
        self._fields: Mapping[str, Any] = template.get("fields", {})
        self._region: str | None = None
        self._text, self._new = "", True
        self._within, self._space = "", ""
        try:
            self._parser = _parser(template, prompt, tools)
            for event in self._parser.initial_events:
                self._take_event(event, [])
        except Exception as error:  # the parser raises what its parts do
            _LOGGER.warning("a prompt does not keep to the response template, so all text is content: %s", error)
            self._parser, self._region = None, None
        self._within = ""

    @property
    def thinks(self) -> bool:
        return self._region in _REASONING

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        found: list[Delta] = []
        self._text += text
        if self._parser is None:
            found.append(Delta("content", text, -1))
            return merged([one for one in found if one.text])
        try:
            events = self._parser.feed(text)
            for event in events:
                self._take_event(event, found)
            if last:
                for event in self._parser.finalize()[1]:
                    self._take_event(event, found)
        except Exception as error:  # the parser raises what its parts do
            _LOGGER.info("a text does not keep to the response template: %s", error)
            at = self._text.rfind(self._within) if self._within else len(self._text) - len(text)
            found.append(Delta("content", self._text[at:], -1))
            self._parser, self._region = None, None
        return merged(self._few(one for one in found if one.text))

    def _take_event(self, event: Mapping[str, Any], found: list[Delta]) -> None:
        name = event["field"]
        calls = name == "tool_calls"
        if event["type"] == "region_open":
            self._region, self._within, self._space, self._new = name, "", "", True
        elif event["type"] == "region_chunk":
            self._within += event["text"] if calls else ""
            if not calls:
                self._pass_on(found, "reasoning" if name in _REASONING else "content", event["text"])
        else:
            if name in _REASONING:
                self.thought = self._end_of(name)
            elif calls:
                found += _call(event["value"], self._functions)
            elif self._space:
                found.append(Delta("content", self._space, -1))
            self._region, self._within = None, ""

    def _end_of(self, name: str) -> int:
        """Returns where a region of thinking that has ended did so, its mark included."""
        marks = self._fields.get(name, {}).get("close", ())
        places = [
            (self._text.find(one, self.thought or 0), one) for one in ([marks] if isinstance(marks, str) else marks)
        ]
        return min((place + len(one) for place, one in places if place >= 0), default=len(self._text))

    def _pass_on(self, found: list[Delta], kind: str, text: str) -> None:
        """Passes on a piece of a region, without new lines around thinking and before content."""
        text = self._space + (text.lstrip("\n") if self._new else text)
        kept = text.rstrip("\n")
        self._space, self._new = text[len(kept) :], self._new and not kept
        if kept:
            found.append(Delta(kind, kept, -1))


def _call(value: Any, names: Container[str]) -> list[Delta]:
    """Returns the deltas of one call, or of a list of them."""
    if isinstance(value, list):
        return [delta for one in value for delta in _call(one, names)]
    function = value.get("function", value) if isinstance(value, dict) else {}
    name, arguments = function.get("name"), function.get("arguments", function.get("parameters"))
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"a call names no function of the request: {value!r:.200}")
    if isinstance(arguments, str) and not is_text(arguments):
        arguments = json_of(arguments)
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    return [Delta("name", name), Delta("arguments", text)]


def _parser(template: Mapping[str, Any], prompt: str, tools: Sequence[Mapping[str, Any]] | None) -> Any:
    from transformers.utils.chat_parsing import ResponseParser

    return ResponseParser(dict(template), prefix=prompt, tools=None if tools is None else [dict(one) for one in tools])


@functools.lru_cache(maxsize=8)
def usable_template(tokenizer: Tokenizer) -> Mapping[str, Any] | None:
    """Returns a tokenizer's response template; `None` if there is none, or none that is read.

    This transformers must read it, and it must have no patterns: nothing would stop them.
    """
    template = tokenizer.response_template
    if template is None:
        return None
    try:
        if patterns := sorted(_patterns(template)):
            raise ValueError(f"it has {', '.join(patterns)}, and a pattern of a file might run without end")
        _parser(template, "", None)
    except Exception as error:  # an older version of the library, or a template for a newer one
        _LOGGER.warning("the tokenizer's response_template is not used: %s", error)
        return None
    return template


def _patterns(value: Any) -> set[str]:
    """Returns the names of the regular expressions in a template."""
    if isinstance(value, Mapping):
        own = {name for name in value if str(name).endswith("pattern")}
        return own.union(*map(_patterns, value.values()))
    return set().union(*map(_patterns, value)) if isinstance(value, list) else set()


@functools.lru_cache(maxsize=8)
def special_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the special tokens that end no text: a response template may name any of them."""
    ends = set(tokenizer.eos_token_ids)
    return tuple(index for index in range(tokenizer.vocab_size) if tokenizer.is_special(index) and index not in ends)
