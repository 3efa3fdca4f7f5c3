"""Reads rows of prompts, and lists what an answer to one says."""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from jaxspec.io.files import json_value
from jaxspec.text.result import TextResult, listed_alternatives

# What a row becomes: a result, the answer to a request of a batch, or the error of a row that failed.
Outcome: TypeAlias = TextResult | dict[str, Any] | Exception
_ID = re.compile(r"\d{1,10}", re.ASCII)


def read_row(line: str, index: int) -> Mapping[str, Any] | Exception:
    """Reads a line of JSON as a row of `complete`; an invalid line becomes an error, which is returned.

    Args:
      line: a JSON object, with a `prompt` or `messages`, and options of the row. Its `id` is left out.
      index: the place of the line, from 0.

    Example:
        >>> from jaxspec.serving.rows import read_row
        >>> read_row('{"prompt": "the sea", "id": 7, "logit_bias": {"5": 1}}', 0)
        {'prompt': 'the sea', 'logit_bias': {5: 1}}
    """
    try:
        row = json_value(line)
    except (ValueError, RecursionError) as error:
        return ValueError(f"line {index + 1} is no JSON: {error}")
    if not isinstance(row, dict):
        return ValueError(f"line {index + 1} must be a JSON object, got {type(row).__name__}")
    return {name: value for name, value in with_token_ids(row).items() if name != "id"}


def with_token_ids(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row whose `logit_bias` has token ids as integers: names in JSON are texts.

    Args:
      row: the row, as it was read.

    Example:
        >>> from jaxspec.serving.rows import with_token_ids
        >>> with_token_ids({"logit_bias": {"5": 1, "x": 2}})
        {'logit_bias': {5: 1, 'x': 2}}
    """
    if not isinstance(biases := row.get("logit_bias"), dict):
        return row
    return {**row, "logit_bias": {int(one) if _ID.fullmatch(str(one)) else one: bias for one, bias in biases.items()}}


def answer_of(result: TextResult | Exception) -> dict[str, Any]:
    """Lists what the answer to a row says: its text and facts about it, or its `error` alone.

    Args:
      result: the result of a row, or its error.

    Example:
        >>> from jaxspec.serving.rows import answer_of
        >>> answer_of(ValueError("the prompt is empty"))
        {'error': 'the prompt is empty'}
    """
    if isinstance(result, Exception) or result.error is not None:
        return {"error": str(result) if isinstance(result, Exception) else result.error}
    return {
        "text": result.text,
        "stop_reason": result.stop_reason,
        "token_ids": list(result.token_ids),
        "prompt_tokens": result.prompt_tokens,
        "seed": result.seed,
        "tokens_per_round": round(float(result.mean_acceptance_length), 3),
        **({"alternatives": listed_alternatives(result)} if result.alternatives else {}),
    }
