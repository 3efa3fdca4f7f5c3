"""Gives a chat template the arguments of earlier calls in a form that it takes: objects, or their JSON."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxspec.checkpoints.chat_template import TemplateLimitError


def with_arguments(messages: Sequence[Mapping[str, Any]], write: Callable[[Sequence[Mapping[str, Any]]], str]) -> str:
    """Returns the conversation that `write` makes of checked messages, with the arguments of calls in a form it takes.

    As given, unless it fails over that. Clients of OpenAI's give JSON, which many templates would quote as a text, or
    fail over: these get objects, and those that fail over objects, or write them as Python does, get JSON.

    Raises:
      TypeError, ValueError: `write` does, in each form.
    """
    given = [one for message in messages for one in _arguments(message)]
    objects = [_as_object(one) for one in given]
    texts = [one for one, found in zip(given, objects, strict=True) if isinstance(one, str) and found is not one]
    # An empty text in quotes may stand anywhere, so it says something only if there is no other.
    quoted = [json.dumps(one, ensure_ascii=x) for one in [*filter(None, texts)] or texts for x in (False, True)]
    in_python = [str(one) for one in objects if isinstance(one, Mapping) and str(one) != json.dumps(one)]
    forms: list[tuple[Callable[[Any], Any] | None, list[str]]] = [(None, quoted)]
    if any(one is not found for one, found in zip(given, objects, strict=True)):
        forms.append((_as_object, in_python))
    if given:
        forms.append((_as_json, []))
    failed = text = None
    for form, unwanted in forms:
        try:
            found = write(messages if form is None else [_with_arguments(one, form) for one in messages])
        except TemplateLimitError:
            raise
        except (TypeError, ValueError) as error:
            failed = failed or error
            continue
        text = found if text is None else text
        if is_text(found) and not any(one in found for one in unwanted):
            return found
    if text is None:
        assert failed is not None
        raise failed
    return text


def json_text(value: Any) -> str:
    """Returns a value as JSON; with escapes if it holds half a surrogate pair, which no UTF-8 has.

    Raises:
      ValueError: it holds a number that is not finite.

    Example:
        >>> from jaxspec.checkpoints.call_arguments import json_text
        >>> json_text({"x": "é"})
        '{"x": "é"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if is_text(text) else json.dumps(value)


def is_text(text: str) -> bool:
    """Returns whether a text has no half of a surrogate pair, so that it can be encoded.

    Example:
        >>> from jaxspec.checkpoints.call_arguments import is_text
        >>> is_text("é"), is_text("\\ud83d")
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arguments(message: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the arguments of a message's calls."""
    for one in message.get("tool_calls") or ():
        function = one.get("function")
        yield (function if isinstance(function, Mapping) else one).get("arguments")


def _with_arguments(message: Mapping[str, Any], form: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Returns a message whose calls have their arguments in another form."""
    changed = lambda one: {**one, "arguments": form(one["arguments"])} if "arguments" in one else one  # noqa: E731
    calls = [
        {**one, "function": changed(one["function"])} if isinstance(one.get("function"), Mapping) else changed(one)
        for one in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_object(arguments: Any) -> Any:
    """Returns arguments as an object if they are its JSON, or empty; others unchanged."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _as_json(arguments: Any) -> str:
    """Returns arguments as JSON."""
    return arguments if isinstance(arguments, str) else json_text(arguments)
