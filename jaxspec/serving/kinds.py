"""Lists the kinds of requests that servers usually get, so that their programs compile before the first one arrives."""

import contextlib
from typing import Any

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.serving.engine import Engine
from jaxspec.serving.fields import read_completion

# Fields of one request of each kind. The table of a small schema has the size of those of many others.
_PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"seed": 0},
    {"logprobs": 1},
    {"temperature": 0, "logprobs": 1},
    {"presence_penalty": 1},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": _PERSON}}},
)


def usual_kinds(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns options of `Engine.submit` for one request of each kind, as the server reads its fields.

    The plain one, which samples with the server's defaults, is first.

    Args:
      tokenizer: that of the target.

    Example:
        >>> from jaxspec.serving.kinds import usual_kinds
        >>> [kind["temperature"] for kind in usual_kinds(target.tokenizer)][:2]
        [1.0, 0]
    """
    asked = [read_completion({"prompt": "a", "max_tokens": 1, **body}, tokenizer) for body in _BODIES]
    return [{**one.options, "seed": one.seed} for one in asked]


def warm(engine: Engine) -> None:
    """Compiles the program of plain requests, and asks for those of the other usual kinds.

    Args:
      engine: that of a server, which is about to listen.
    """
    tokenizer = engine.decoder.tokenizer
    plain, *others = usual_kinds(tokenizer)
    engine.submit(tokenizer.encode("a") or [0], **{**plain, "max_new_tokens": 2, "stop_tokens": ()}).result()
    for kind in others:
        with contextlib.suppress(TypeError, ValueError, ImportError):  # what cannot be, a request hears of
            engine.prepare([kind])
