"""Checks conversations: lists of messages, each with a role and a content."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jaxspec.core import validate

Messages: TypeAlias = Sequence[Mapping[str, str]]

_EXAMPLE = "[{'role': 'user', 'content': 'Hello'}]"


def conversations(messages: Any) -> tuple[list[Messages], bool]:
    """Returns the conversations, and whether the caller passed one by itself.

    Raises:
      TypeError, ValueError: it is neither a list of messages nor one of conversations.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError(f"messages must be a list of at least one message, {_EXAMPLE}, got {messages!r}")
    single = isinstance(messages[0], Mapping)
    found: list[Any] = [messages] if single else list(messages)
    for turns in found:
        if not isinstance(turns, list | tuple) or not turns:
            raise ValueError(f"messages must be a list of messages, {_EXAMPLE}, or of such lists, got {turns!r} in it")
        for message in turns:
            _check(message)
    return found, single


def _check(message: Any) -> None:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise ValueError(f"messages must be dictionaries with 'role' and 'content', got the message {message!r}")
    for name in ("role", "content"):
        validate.text(f"the {name} of a message", message[name])
