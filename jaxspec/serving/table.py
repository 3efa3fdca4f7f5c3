"""Lists the fields of requests: what each may hold, its default, and what it means.

`fields` reads requests by these tables, and `openapi` describes them to others.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

# The numbers of likely tokens for which there are programs.
ALTERNATIVES = (0, 1, 5, 20)
# The default of a completion, as at OpenAI.
MAX_TOKENS = 16
MOST_ANSWERS, MOST_CHOICES = 128, 1024
# NaN and infinity compare as larger.
_LARGEST = 1e300
_MOST = 2**31 - 1
# The schema of a token, which depends on the model.
TOKEN = "#/components/schemas/Token"


class Kind(NamedTuple):
    """Describes what a field may hold.

    Attributes:
      text: the description for errors.
      fits: returns whether a value is of the kind.
      schema: the JSON schema of those values.
      read: returns the value as the server uses it.

    Example:
        >>> from jaxspec.serving.table import FLAG
        >>> FLAG.fits(True), FLAG.fits(1), FLAG.schema
        (True, False, {'type': 'boolean'})
    """

    text: str
    fits: Callable[[Any], bool]
    schema: Mapping[str, Any]
    read: Callable[[Any], Any] = lambda value: value


class Field(NamedTuple):
    """Describes a field.

    Attributes:
      kind: what it may hold, besides null.
      about: what it means.
      default: the value without it.
      least: the smallest value; `None` for any.
      most: the largest value; `None` for any.
      parts: the fields of an object; `None` for other values, or if they are read elsewhere.

    Example:
        >>> from jaxspec.serving.table import CHAT
        >>> CHAT["n"].default, CHAT["n"].least
        (1, 1)
    """

    kind: Kind
    about: str
    default: Any = None
    least: int | float | None = None
    most: int | float | None = None
    parts: "Mapping[str, Field] | None" = None


Table = Mapping[str, Field]


def is_int(value: Any) -> bool:
    """Returns whether a value is a whole number, which may be written as 2.0, and no flag."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def whole(value: Any) -> Any:
    """Returns a value whose numbers are whole, with integers instead of floats.

    Example:
        >>> from jaxspec.serving.table import whole
        >>> whole([2.0, [3]])
        [2, [3]]
    """
    if isinstance(value, list):
        return [whole(one) for one in value]
    return int(value) if isinstance(value, float) else value


def is_text(value: Any) -> bool:
    """Returns whether a value is a text."""
    return isinstance(value, str)


def list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns what says whether a value is a list of values that fit."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _within(low: int | float, high: int | float, *, open_low: bool = False) -> Kind:
    """Returns the kind of numbers in a range."""
    fits = lambda value: _is_number(value) and (low < value if open_low else low <= value) and value <= high  # noqa: E731
    text = f"a number {'above' if open_low else 'of at least'} {low:g}"
    bounds = {"exclusiveMinimum" if open_low else "minimum": low}
    if high < _LARGEST:
        text, bounds = f"{text}, up to {high:g}", {**bounds, "maximum": high}
    return Kind(text, fits, {"type": "number", **bounds})


def _is_bias(value: Any) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,10}", key.strip()) and _is_number(bias) for key, bias in value.items()
    )


def _array(items: Mapping[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


_STRING: Mapping[str, Any] = {"type": "string"}
INTEGER = Kind("an integer", is_int, {"type": "integer"}, whole)
FLAG = Kind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
TEXT = Kind("a string", is_text, _STRING)
_ID = Kind(
    "a string of at most 128 printable characters",
    lambda value: is_text(value) and len(value) <= 128 and value.isprintable(),
    {"type": "string", "maxLength": 128},
)
OBJECT = Kind("an object", lambda value: isinstance(value, dict), {"type": "object"})
TEXTS = Kind(
    "a string or a list of strings",
    lambda value: is_text(value) or list_of(is_text)(value),
    {"anyOf": [_STRING, _array(_STRING)]},
)
IDS = Kind("a list of token ids", list_of(is_int), _array({"$ref": TOKEN}), whole)
_SOME_IDS = Kind(
    "a list of at least one token id",
    lambda value: IDS.fits(value) and value != [],
    _array({"$ref": TOKEN}, minItems=1),
    whole,
)
PROMPT = Kind(
    "a string, a list of strings, token ids or a list of lists of token ids",
    lambda value: (
        is_text(value) or list_of(is_text)(value) or list_of(is_int)(value) or list_of(list_of(is_int))(value)
    ),
    {
        "anyOf": [
            {**_STRING, "minLength": 1},
            _array({**_STRING, "minLength": 1}, minItems=1, maxItems=MOST_CHOICES),
            _array({"$ref": TOKEN}, minItems=1),
            _array(_array({"$ref": TOKEN}, minItems=1), minItems=1, maxItems=MOST_CHOICES),
        ]
    },
    whole,
)
_BIASES = Kind(
    "an object from token ids to numbers",
    _is_bias,
    {"type": "object", "patternProperties": {"^[0-9]{1,10}$": {"type": "number"}}, "additionalProperties": False},
)
_SCHEMA = Kind("a JSON schema", lambda value: isinstance(value, dict | str), {"anyOf": [{"type": "object"}, _STRING]})
_CONTENT = Kind(
    "a text or a list of text parts",
    lambda value: isinstance(value, str | list),
    {"anyOf": [_STRING, _array({"$ref": "#/components/schemas/TextPart"})]},
)
_MESSAGES = Kind(
    "a list of messages",
    list_of(lambda value: isinstance(value, dict)),
    _array({"$ref": "#/components/schemas/Message"}, minItems=1),
)


def _elsewhere(schema: Mapping[str, Any]) -> Kind:
    """Returns the kind of a field that is checked where it is used."""
    return Kind("", lambda value: True, schema)


def _one_of(*values: Any) -> Kind:
    return _elsewhere({"enum": list(values)})


STREAM_OPTIONS: Table = MappingProxyType(
    {
        "include_usage": Field(FLAG, "Whether the stream ends with the counts of tokens.", False),
        "continuous_usage_stats": Field(FLAG, "Whether each piece has the counts of tokens.", False),
    }
)
JSON_SCHEMA: Table = MappingProxyType({"schema": Field(OBJECT, "The JSON schema of the answer.")})
RESPONSE_FORMAT: Table = MappingProxyType(
    {
        "type": Field(
            Kind("text, json_object or json_schema", is_text, {"enum": ["text", "json_object", "json_schema"]}),
            "The kind of answer.",
            "text",
        ),
        "json_schema": Field(OBJECT, "The schema, with its name.", parts=JSON_SCHEMA),
    }
)
STRUCTURED_OUTPUTS: Table = MappingProxyType(
    {
        "json": Field(_SCHEMA, "The answer keeps to this JSON schema."),
        "regex": Field(TEXT, "The answer matches this regular expression."),
        "choice": Field(
            Kind("a list of strings", list_of(is_text), _array(_STRING, minItems=1)), "The answer is one of these."
        ),
        "grammar": Field(TEXT, "The answer keeps to this Lark grammar."),
        "json_object": Field(FLAG, "The answer is a JSON object.", False),
        "structural_tag": Field(_elsewhere({"type": "null"}), "Not supported."),
    }
)
TEXT_PART: Table = MappingProxyType(
    {
        "type": Field(Kind("text", lambda value: value == "text", {"const": "text"}), "The only kind."),
        "text": Field(TEXT, "The text."),
    }
)
PREDICTION: Table = MappingProxyType({"content": Field(_CONTENT, "The expected answer.")})
# Fields that become an option of `Engine.submit` as they are, with its name.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "min_p": "min_p",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "repetition_penalty": "repetition_penalty",
        "bad_words": "bad_words",
        "min_tokens": "min_new_tokens",
        "allowed_token_ids": "allowed_tokens",
        "priority": "priority",
        "cache_salt": "cache_salt",
    }
)
# Fields of which one value is honored.
ONLY: Mapping[str, bool] = MappingProxyType(
    {
        "use_beam_search": False,
    }
)
# Fields that cannot be honored, and what to say.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "suffix": "a text cannot be filled in before a suffix; leave suffix out",
        "audio": "there is no audio; leave audio out",
        "functions": "functions are not supported; leave functions out",
    }
)
_SHARED: dict[str, Field] = {
    "model": Field(TEXT, "The name of the model."),
    "stream": Field(FLAG, "Whether to send the text while it is decoded, as server-sent events.", False),
    "stream_options": Field(OBJECT, "Options of a stream; only with `stream`.", parts=STREAM_OPTIONS),
    "n": Field(INTEGER, "The number of answers to each prompt.", 1, 1, MOST_ANSWERS),
    "best_of": Field(INTEGER, "Must be `n`.", None, 1, MOST_ANSWERS),
    "seed": Field(INTEGER, "The seed of the first answer, modulo 2^32; the next ones have the next seeds."),
    "temperature": Field(_within(0, 1e30), "The sampling temperature; 0 is greedy.", 1.0),
    "top_p": Field(_within(0, 1, open_low=True), "Keep the most likely tokens up to this total.", 1.0),
    "top_k": Field(INTEGER, "Keep this many of the most likely tokens; 0 and -1 keep all.", 0, -1, _MOST),
    "min_p": Field(_within(0, 1), "Keep tokens of at least this fraction of the highest probability.", 0.0),
    "presence_penalty": Field(_within(-1e4, 1e4), "Subtracted from the logits of tokens in the answer.", 0.0),
    "frequency_penalty": Field(_within(-1e4, 1e4), "Subtracted for each time that a token is in the answer.", 0.0),
    "repetition_penalty": Field(_within(1e-4, 1e4), "Divides the logits of tokens in the prompt or the answer.", 1.0),
    "logit_bias": Field(_BIASES, "From token ids to numbers that are added to their logits."),
    "allowed_token_ids": Field(_SOME_IDS, "The only tokens that may come."),
    "bad_words": Field(TEXTS, "Texts that do not come."),
    "min_tokens": Field(INTEGER, "The number of tokens before which no stop token ends an answer.", 0, 0, _MOST),
    "stop": Field(TEXTS, "Texts before which an answer is cut."),
    "stop_token_ids": Field(IDS, "Tokens that end an answer."),
    "include_stop_str_in_output": Field(FLAG, "Whether a text ends with the stop string that cut it.", False),
    "skip_special_tokens": Field(FLAG, "Whether special tokens are no part of a text.", True),
    "ignore_eos": Field(FLAG, "Whether the model's own stop tokens end no answer.", False),
    "prompt_logprobs": Field(
        INTEGER, "The number of likely tokens to report in the prompt; not in a stream.", None, 0, ALTERNATIVES[-1]
    ),
    "return_token_ids": Field(FLAG, "Whether an answer has its token ids.", False),
    "return_tokens_as_token_ids": Field(FLAG, "Whether tokens with log-probabilities are named by their ids.", False),
    "request_id": Field(_ID, "The end of the answer's id."),
    "response_format": Field(OBJECT, "What the answer keeps to.", parts=RESPONSE_FORMAT),
    "structured_outputs": Field(OBJECT, "One grammar that the answer keeps to.", parts=STRUCTURED_OUTPUTS),
    "prediction": Field(OBJECT, "An expected answer, for a drafter that copies.", parts=PREDICTION),
    "priority": Field(INTEGER, "Requests with a smaller number start first.", 0, -(2**31), _MOST),
    "cache_salt": Field(TEXT, "Only requests with an equal one share cached texts."),
    **{name: Field(FLAG, f"Can only be {str(one).lower()}.", one) for name, one in ONLY.items()},
    **{name: Field(_elsewhere({"type": "null"}), "Not supported.") for name in REFUSED},
}
COMPLETION: Table = MappingProxyType(
    {
        "prompt": Field(PROMPT, "One prompt or several, as texts or as token ids."),
        **_SHARED,
        "max_tokens": Field(INTEGER, "The number of tokens of an answer.", MAX_TOKENS, 0, _MOST),
        "logprobs": Field(INTEGER, "The number of likely tokens to report.", None, 0, ALTERNATIVES[-1]),
        "echo": Field(FLAG, "Whether the text begins with the prompt.", False),
        "add_special_tokens": Field(FLAG, "Whether a text begins with the model's own start token.", True),
    }
)
CHAT: Table = MappingProxyType(
    {
        "messages": Field(_MESSAGES, "The conversation."),
        **_SHARED,
        "max_tokens": Field(INTEGER, "The number of tokens of an answer; all that fit without it.", None, 0, _MOST),
        "max_completion_tokens": Field(INTEGER, "Another name of `max_tokens`, which goes first.", None, 0, _MOST),
        "logprobs": Field(FLAG, "Whether to report log-probabilities.", False),
        "top_logprobs": Field(INTEGER, "The number of likely tokens; with `logprobs`.", 0, 0, ALTERNATIVES[-1]),
        "add_generation_prompt": Field(FLAG, "Whether the prompt opens the answer.", True),
        "continue_final_message": Field(
            FLAG, "Whether the model continues the last message; not with `add_generation_prompt`.", False
        ),
        "include_reasoning": Field(FLAG, "Whether an answer has the model's thinking.", True),
        "reasoning_effort": Field(
            _one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"), "A variable of the chat template."
        ),
        "thinking_token_budget": Field(
            _elsewhere({"type": "integer", "minimum": -1, "maximum": _MOST}), "Tokens after which the thinking ends."
        ),
        "chat_template_kwargs": Field(_elsewhere({"type": "object"}), "Variables of the chat template."),
        "tools": Field(
            _elsewhere(_array({"$ref": "#/components/schemas/Tool"}, minItems=1)), "Functions that may be called."
        ),
        "tool_choice": Field(
            _elsewhere({"anyOf": [{"enum": ["none", "auto", "required"]}, {"$ref": "#/components/schemas/NamedTool"}]}),
            'Whether functions are called; with `tools`. "auto" without it.',
        ),
        "parallel_tool_calls": Field(_elsewhere({"type": "boolean"}), "Whether there may be several calls.", True),
    }
)
DETOKENIZE: Table = MappingProxyType({"tokens": Field(IDS, "The tokens.")})
TOKENIZE: Table = MappingProxyType(
    {"return_token_strs": Field(FLAG, "Whether the answer has the text of each token.", False)}
)
