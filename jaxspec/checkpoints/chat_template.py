"""Renders chat templates with limits on time, memory and output, in one process shared by all tokenizers."""

import atexit
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoints import chat_worker
from jaxspec.core import validate

# For a stopped or starved process. Where the system limits CPU time, a process that computes ends long before.
_SECONDS = 60.0 if chat_worker.resource is not None else 10.0
_MOST_REPLY = 16 * chat_worker.CHARACTERS
# The possible names of a message's reasoning; templates read the first, and some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PARTS = {"content", "tool_calls", *_REASONING}
# Written after a message to continue; it ends with a space, as in `transformers`, to see whether a template strips.
_END = "END_OF_THE_MESSAGE_TO_CONTINUE "
# A template with one of these takes content in parts: a loop over it, a filter by attributes, a part's text by number.
_READS_PARTS = re.compile(
    r"""\bfor\s+\w+\s+in\s+(?:(?!\bif\b)[^%|]){0,200}\bcontent\b"""
    r"""|(?<!attr\(["'])\bcontent\b["'\])\s]*\|\s*(?:map|selectattr|rejectattr)\b"""
    r"""|\bcontent\b["'\])\s]*\[\s*-?\d+\s*\]\s*(?:\.|\[\s*["'])\s*(?:text|type)\b"""
)


def check_message(message: Any) -> None:
    """Checks a message: a role, and content as a text or as parts of text.

    An assistant's may have no content if it has calls of tools, or reasoning.

    Raises:
      TypeError, ValueError: it is not such a dictionary.
    """
    if not isinstance(message, Mapping) or "role" not in message or not _PARTS & set(message):
        raise ValueError(f"messages must be dictionaries with 'role' and 'content', got the message {message!r}")
    validate.text("the role of a message", message["role"])
    content, calls = message.get("content"), message.get("tool_calls") or []
    if not isinstance(calls, list | tuple) or not all(isinstance(one, Mapping) for one in calls):
        raise TypeError(f"tool_calls of a message must be a list of dictionaries, got {validate.shown(calls)}")
    if content is None and (calls or only_thinks(message)):
        return
    for part in content if isinstance(content, list | tuple) else ():
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise ValueError(
                f"a part of a message must be {{'type': 'text', 'text': ...}}, "
                f"got {validate.shown(part)}; models here read text "
                "only, so leave out images, sounds and videos"
            )
        validate.text("the text of a part of a message", part.get("text"))
    if not isinstance(content, list | tuple):
        validate.text("the content of a message", content)


def only_thinks(message: Mapping[str, Any]) -> bool:
    """Returns whether a message is an assistant's that has reasoning and no content, as after too few tokens."""
    thinks = message.get("role") == "assistant" and any(message.get(name) for name in _REASONING)
    return thinks and message.get("content") is None


def text_of(message: Mapping[str, Any]) -> str:
    """Returns the text of a checked message, its parts one per line, as in llama.cpp and vLLM."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def with_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns checked messages, with a mark after the text of the last one, which `cut_at_end` finds.

    Raises:
      ValueError: that message has no text.
    """
    if not messages or not text_of(messages[-1]).strip():
        raise ValueError("continue_final_message needs a last message with a text; leave it out")
    *before, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + _END}]
    return [*before, {**last, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END}]}]


def cut_at_end(text: str) -> str:
    """Returns a conversation with such messages that was written, up to the mark, as `transformers` does.

    A template that strips messages has taken the mark's space; then that before the mark goes too.

    Raises:
      ValueError: the template does not write the last message.
    """
    place = text.rfind(_END.strip())
    if place < 0:
        raise ValueError("continue_final_message needs a last message that the chat template writes; leave it out")
    return text[:place] if text.startswith(_END, place) else text[:place].rstrip()


def for_template(template: str, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns checked messages, with parts of content as one text for a template that does not read parts."""
    if _READS_PARTS.search(template):
        return messages
    in_parts = [isinstance(one.get("content"), list | tuple) for one in messages]
    return [{**one, "content": text_of(one)} if parts else one for one, parts in zip(messages, in_parts, strict=True)]


def with_tool_use(default: str | None, tool_use: str | None) -> str | None:
    """Returns one template that renders as the first, or with functions as the second, if there are both."""
    if default is None or tool_use is None:
        return default
    # A block swallows the newline after it, and spaces before it that begin a line.
    start, end = "\n", "{{ '' }}"
    first, second = (one.removeprefix("\ufeff").removesuffix("\n") for one in (default, tool_use))
    return f"{{% if tools is not none %}}{start}{second}{end}{{% else %}}{start}{first}{end}{{% endif %}}"


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Renders a conversation as transformers does.

    Args:
      template: a chat template, in the language of jinja2.
      messages: dictionaries with `role`, `content` and anything else that the template reads.
      special_tokens: the texts of the special tokens, by the names that the template uses.
      add_generation_prompt: whether to open the assistant's next turn.
      tools: the functions that the model may call, each with its JSON schema.
      more: other variables that the template reads.

    Raises:
      TypeError: a message holds a value that JSON cannot express.
      ValueError: the template is invalid, raises an error, or exceeds the limits on time, memory or output.
    """
    variables = {**special_tokens, "documents": None, **(more or {})}
    variables |= {"messages": [_message(one) for one in messages], "tools": None if tools is None else list(tools)}
    variables["add_generation_prompt"] = add_generation_prompt
    template = template.removeprefix("\ufeff")  # the mark of an editor, not text
    request = {"template": template, "variables": variables, "seconds": chat_worker.CPU_SECONDS}
    answer = _shared.ask(json.dumps(request).encode() + b"\n")
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["text"]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Drops `None` values, and gives reasoning the names that templates read, as transformers does."""
    values = {name: value for name, value in message.items() if value is not None}
    found = [values[name] for name in _REASONING if name in values]
    return {"thinking": found[0], **values, "reasoning_content": found[0]} if found else values


class TemplateLimitError(ValueError):
    """Says that a template took too much time or memory, or ended the process it ran in."""


class _Worker:
    """Runs `chat_worker.py`, which ends with this process because its standard input then closes."""

    def __init__(self):
        specs = [importlib.util.find_spec(name) for name in ("jinja2", "markupsafe")]
        paths = sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin})
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", chat_worker.__file__, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # forks would copy a buffer, and write it twice
            start_new_session=True,  # Control-C at the terminal must reach only this process
        )

    def ask(self, request: bytes) -> dict[str, str]:
        """Returns the answer to a line of JSON; without one, ends the process and raises `TemplateLimitError`."""
        timer = threading.Timer(_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        reply = b""
        try:
            with contextlib.suppress(OSError):  # the process may have ended
                self._send(request)
                reply = self._receive()
        finally:
            timer.cancel()
            if not reply.endswith(b"\n"):
                self.stop()
        if not reply.endswith(b"\n"):
            raise TemplateLimitError(self._reason())
        return json.loads(reply)

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()

    def _send(self, request: bytes) -> None:
        assert self.process.stdin is not None
        rest = memoryview(request)
        while rest:
            rest = rest[self.process.stdin.write(rest) :]

    def _receive(self) -> bytes:
        assert self.process.stdout is not None
        parts, count = [b""], 0
        while not parts[-1].endswith(b"\n") and count < _MOST_REPLY:
            parts.append(self.process.stdout.read(2**20))
            count += len(parts[-1])
            if not parts[-1]:
                break
        return b"".join(parts)

    def _reason(self) -> str:
        status = self.process.wait()
        if os.name == "posix" and status == -signal.SIGXCPU:
            return f"the template takes more than {chat_worker.CPU_SECONDS} seconds"
        return f"the process that renders it ended with status {status}"


class _Shared:
    """Holds this process's only worker, which the first template starts."""

    def __init__(self):
        self.lock, self.worker = threading.Lock(), None

    def forget(self) -> None:
        """Forgets the worker without ending it: it belongs to the parent, whose answers a fork must not read."""
        if self.worker is not None:
            self.worker.process.returncode = 0  # keeps `subprocess` from warning about it
        self.lock, self.worker = threading.Lock(), None

    def ask(self, request: bytes) -> dict[str, str]:
        with self.lock:
            if self.worker is None or self.worker.process.poll() is not None:
                self.worker = _Worker()
            return self.worker.ask(request)

    def stop(self) -> None:
        """Ends the worker, if there is one."""
        if self.worker is not None:
            self.worker.stop()


_shared = _Shared()
atexit.register(_shared.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.forget)
