"""Writes the message of one choice of a chat, whole or in pieces: content, reasoning and calls of functions."""

import bisect
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspec.serving.conversation import Conversation, call_id
from jaxspec.serving.reader import Delta
from jaxspec.text.result import Span


class Turn:
    """Writes one choice, whose text is pushed once as a whole, or in pieces.

    Attributes:
      calls: the number of calls so far.

    Example:
        >>> from jaxspec.serving.turn import Turn
        >>> turn = Turn(None)
        >>> [delta for delta, _ in turn.push("the sea")], turn.calls
        ([{'content': 'the sea'}], 0)
    """

    def __init__(self, conversation: Conversation | None, *, reasoning: bool = True) -> None:
        """Starts a choice.

        Args:
          conversation: the chat that it answers; `None` if all text is content.
          reasoning: whether to write the model's thinking.
        """
        self._reader = None if conversation is None else conversation.reader()
        self._conversation = conversation
        self._reasoning = reasoning
        self._spans: list[Span] = []
        self._ends: list[int] = []
        self.calls = 0

    def push(
        self, text: str, spans: Sequence[Span] = (), *, last: bool = False
    ) -> Iterator[tuple[dict[str, Any], list[Span]]]:
        """Yields the deltas that a piece of text adds, each with the spans of its content."""
        for span in spans:
            self._spans.append(span)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(span.text))
        if self._reader is None:
            if text:
                yield {"content": text}, list(spans)
            return
        for one in self._reader.push(text, last=last):
            if one.kind == "content":
                yield {"content": one.text}, self._within(one)
            elif one.kind != "reasoning":
                yield {"tool_calls": [self._call(one)]}, []
            elif self._reasoning:
                yield {"reasoning": one.text, "reasoning_content": one.text}, []

    def message(self, text: str, spans: Sequence[Span] = ()) -> dict[str, Any]:
        """Returns the message of a whole text."""
        texts = {"content": "", "reasoning": ""}
        calls: list[dict[str, Any]] = []
        for delta, _ in self.push(text, spans, last=True):
            for name in texts:
                texts[name] += delta.get(name, "")
            for one in delta.get("tool_calls", ()):
                if "id" in one:
                    calls.append({name: value for name, value in one.items() if name != "index"})
                else:
                    calls[-1]["function"]["arguments"] += one["function"]["arguments"]
        thoughts = {"reasoning": texts["reasoning"], "reasoning_content": texts["reasoning"]}
        alone = not texts["reasoning"] and not calls
        return {
            "role": "assistant",
            "content": texts["content"] if texts["content"] or alone else None,
            **(thoughts if texts["reasoning"] else {}),
            **({"tool_calls": calls} if calls else {}),
        }

    def reasoning_tokens(self) -> int:
        """Returns the number of tokens so far that belong to the thinking, its marks included."""
        if self._reader is None:
            return 0
        if self._reader.thought is None:
            return len(self._ends) if self._reader.thinks else 0
        return bisect.bisect_right(self._ends, self._reader.thought)

    def _call(self, one: Delta) -> dict[str, Any]:
        if one.kind == "arguments":
            return {"index": self.calls - 1, "function": {"arguments": one.text}}
        self.calls += 1
        return {
            "index": self.calls - 1,
            "id": call_id(self._conversation, one.text, self.calls - 1, secrets.token_hex(12)),
            "type": "function",
            "function": {"name": one.text, "arguments": ""},
        }

    def _within(self, one: Delta) -> list[Span]:
        """Returns the spans of a piece of content, cut to it; none if its place is not known, below 0."""
        if one.place < 0:
            return []
        start, stop = one.place, one.place + len(one.text)
        found = []
        for index in range(bisect.bisect_right(self._ends, start), len(self._spans)):
            span, end = self._spans[index], self._ends[index]
            begin = end - len(span.text)
            if begin >= stop:
                break
            found.append(span._replace(text=span.text[max(start - begin, 0) : stop - begin]))
        return found
