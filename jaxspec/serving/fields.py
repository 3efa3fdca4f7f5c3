"""Reads the fields of completion and chat requests, under the names that OpenAI's and vLLM's clients send.

Absent fields and null mean the default; unknown fields are ignored; what cannot be honored is an error.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.validate import shown
from jaxspec.serving.conversation import Conversation, read_conversation
from jaxspec.serving.errors import ApiError

# The numbers of likely tokens for which there are programs.
_ALTERNATIVES = (0, 1, 5, 20)
# The default of a completion, as at OpenAI.
_MAX_TOKENS = 16
_MOST_ANSWERS, _MOST_CHOICES = 128, 1024
# NaN and infinity compare as larger.
_LARGEST = 1e300


class _Kind(NamedTuple):
    """Describes what a field may hold."""

    text: str
    fits: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_INTEGER = _Kind("an integer", _is_int)
_NUMBER = _Kind("a finite number", _is_number)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_TEXT = _Kind("a string", _is_text)
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_TEXTS = _Kind("a string or a list of strings", lambda value: _is_text(value) or _list_of(_is_text)(value))
_IDS = _Kind("a list of token ids", _list_of(_is_int))
_MESSAGES = _Kind("a list of messages", _list_of(lambda value: isinstance(value, dict)))
_BIASES = _Kind(
    "an object from token ids to numbers",
    lambda value: (
        isinstance(value, dict)
        and all(re.fullmatch("[0-9]{1,10}", key.strip()) and _is_number(bias) for key, bias in value.items())
    ),
)

# Fields that become an option of `Engine.submit` as they are, with its name.
_OPTIONS: Mapping[str, tuple[str, _Kind]] = MappingProxyType(
    {
        "min_p": ("min_p", _NUMBER),
        "presence_penalty": ("presence_penalty", _NUMBER),
        "frequency_penalty": ("frequency_penalty", _NUMBER),
        "repetition_penalty": ("repetition_penalty", _NUMBER),
        "bad_words": ("bad_words", _TEXTS),
        "min_tokens": ("min_new_tokens", _INTEGER),
        "allowed_token_ids": ("allowed_tokens", _IDS),
        "priority": ("priority", _INTEGER),
        "cache_salt": ("cache_salt", _TEXT),
    }
)
# Penalties of 0 (1 for the repetition penalty) do nothing, and are sent by many clients.
_NEUTRAL = MappingProxyType({"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0})
_GRAMMARS: Mapping[str, tuple[str, _Kind]] = MappingProxyType(
    {
        "json": ("schema", _Kind("a JSON schema", lambda value: isinstance(value, dict | str))),
        "regex": ("regex", _TEXT),
        "choice": ("choices", _Kind("a list of strings", _list_of(_is_text))),
        "grammar": ("grammar", _TEXT),
    }
)
_ANY_OBJECT = MappingProxyType({"type": "object", "additionalProperties": True})
# Fields of which one value is honored.
_ONLY: Mapping[str, bool] = MappingProxyType(
    {
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "continue_final_message": False,
        "return_tokens_as_token_ids": False,
        "use_beam_search": False,
    }
)
# Fields that cannot be honored, and what to say.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "suffix": "a text cannot be filled in before a suffix; leave suffix out",
        "audio": "there is no audio; leave audio out",
        "functions": "functions are not supported; leave functions out",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Holds a checked request.

    Attributes:
      chat: whether it is a conversation.
      prompts: token ids of each prompt.
      texts: the text of each prompt, for `echo`.
      options: options of `Engine.submit`, besides `seed`.
      seed: seed of the first answer; `None` means that each draws its own.
      answers: number of answers to each prompt.
      stream: whether to send the text while it is decoded.
      usage: whether a stream ends with the counts of tokens.
      each_usage: whether each piece of a stream has them.
      echo: whether the text begins with the prompt.
      top: number of likely tokens to report at each position; `None` for no log-probabilities.
      prompt_top: number of likely tokens to report at each position of the prompt, in vLLM's form; `None` for none.
      return_ids: whether the answer has token ids.
      conversation: what a chat says about functions and thinking.
      reasoning: whether the answer has the model's thinking.

    Example:
        >>> from jaxspec.serving.fields import Asked
        >>> asked = Asked(chat=False, prompts=[[1]], texts=["a"], options={})
        >>> asked.seed_of(0) is None
        True
    """

    chat: bool
    prompts: list[list[int]]
    texts: list[str]
    options: dict[str, Any]
    seed: int | None = None
    answers: int = 1
    stream: bool = False
    usage: bool = False
    each_usage: bool = False
    echo: bool = False
    top: int | None = None
    prompt_top: int | None = None
    return_ids: bool = False
    conversation: Conversation | None = None
    reasoning: bool = True

    def seed_of(self, choice: int) -> int | None:
        """Returns the seed of a choice: answers to one prompt have successive seeds."""
        return None if self.seed is None else (self.seed + choice % self.answers) % 2**32


class _Fields:
    """Reads the fields of one JSON object."""

    def __init__(self, values: Any, name: str = "") -> None:
        if not isinstance(values, dict):
            raise ApiError(400, f"{name or 'the body'} must be a JSON object, got {shown(values)}", param=name or None)
        self._values = {key: value for key, value in values.items() if value is not None}
        self._prefix = f"{name}." if name else ""

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, kind: _Kind, default: Any = None, least: int | None = None, most: int | None = None):
        """Returns a field, or the default if it is absent; raises `ApiError` unless it is of the kind and in range."""
        value, full = self._values.get(name), self._prefix + name
        if value is None:
            return default
        if not kind.fits(value):
            raise ApiError(400, f"{full} must be {kind.text}, got {shown(value)}", param=full)
        if (least is not None and value < least) or (most is not None and value > most):
            raise ApiError(400, f"{full} must be between {least} and {most}, got {shown(value)}", param=full)
        return value

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not null."""
        return self._values

    def part(self, name: str) -> "_Fields":
        """Returns the fields of an object within this one, which has none if it is absent."""
        return _Fields(self.get(name, _OBJECT, {}), self._prefix + name)


def read_completion(body: Any, tokenizer: Tokenizer) -> Asked:
    """Reads the body of `/v1/completions`.

    Raises:
      ApiError: a field is wrong, or cannot be honored.
    """
    fields = _Fields(body)
    special = fields.get("add_special_tokens", _FLAG, default=True)
    prompts = [
        (tokenizer.encode(one, add_special_tokens=special), one)
        if isinstance(one, str)
        else (one, tokenizer.decode(one, skip_special_tokens=False))
        for one in _prompts(fields, tokenizer.vocab_size)
    ]
    top = fields.get("logprobs", _INTEGER, least=0, most=_ALTERNATIVES[-1])
    return _asked(
        fields,
        prompts,
        tokenizer,
        chat=False,
        most=fields.get("max_tokens", _INTEGER, _MAX_TOKENS, 0, 2**31 - 1),
        top=top,
        echo=fields.get("echo", _FLAG, default=False),
    )


def read_chat(body: Any, tokenizer: Tokenizer, vocab_size: int | None = None) -> Asked:
    """Reads the body of `/v1/chat/completions`; `vocab_size` is that of the target's logits.

    Raises:
      ApiError: a field is wrong, or cannot be honored.
    """
    fields = _Fields(body)
    messages = fields.get("messages", _MESSAGES)
    if not messages:
        raise ApiError(400, 'messages must be a list such as [{"role": "user", "content": "Hello"}]', param="messages")
    fields.get("add_generation_prompt", _FLAG)
    conversation = read_conversation(fields.given, tokenizer)
    wanted = fields.get("logprobs", _FLAG, default=False)
    top = fields.get("top_logprobs", _INTEGER, 0, 0, _ALTERNATIVES[-1])
    if top and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs; pass logprobs=true", param="top_logprobs")
    most = fields.get("max_tokens", _INTEGER, None, 0, 2**31 - 1)
    asked = _asked(
        fields,
        [(conversation.ids, "")],
        tokenizer,
        chat=True,
        most=fields.get("max_completion_tokens", _INTEGER, most, 0, 2**31 - 1),
        top=top if wanted else None,
    )
    return dataclasses.replace(
        asked,
        options=conversation.options(asked.options, tokenizer, vocab_size or tokenizer.vocab_size),
        conversation=conversation,
        reasoning=fields.get("include_reasoning", _FLAG, default=True),
    )


def _prompts(fields: _Fields, vocab_size: int) -> list[str | list[int]]:
    value = fields.get(
        "prompt",
        _Kind(
            "a string, a list of strings, token ids or a list of lists of token ids",
            lambda value: (
                _is_text(value)
                or _list_of(_is_text)(value)
                or _list_of(_is_int)(value)
                or _list_of(_list_of(_is_int))(value)
            ),
        ),
    )
    if value is None or value == [] or (isinstance(value, list) and [] in value):
        raise ApiError(400, "prompt must hold text or token ids, got none", param="prompt")
    found: list[Any] = [value] if isinstance(value, str) or _is_int(value[0]) else value
    for one in found:
        if not isinstance(one, str) and not 0 <= min(one) <= max(one) < vocab_size:
            raise ApiError(400, f"prompt has a token id outside of 0 to {vocab_size - 1}", param="prompt")
    return found


def _asked(
    fields: _Fields,
    prompts: Sequence[tuple[list[int], str]],
    tokenizer: Tokenizer,
    *,
    chat: bool,
    most: int | None,
    top: int | None,
    echo: bool = False,
) -> Asked:
    """Reads the fields that completions and chats share."""
    for name, message in _REFUSED.items():
        if name in fields:
            raise ApiError(400, message, param=name)
    for name, only in _ONLY.items():
        if fields.get(name, _FLAG, only) is not only:
            raise ApiError(400, f"{name} can only be {str(only).lower()}; leave it out", param=name)
    answers = fields.get("n", _INTEGER, 1, 1, _MOST_ANSWERS)
    if len(prompts) * answers > _MOST_CHOICES:
        raise ApiError(400, f"a request has at most {_MOST_CHOICES} answers, got {len(prompts) * answers}", param="n")
    if fields.get("best_of", _INTEGER, answers) != answers:
        raise ApiError(400, f"best_of must be n, {answers}: no answers are left out", param="best_of")
    stream, asked_of = fields.get("stream", _FLAG, default=False), fields.part("stream_options")
    if "stream_options" in fields and not stream:
        raise ApiError(400, "stream_options is for streams; pass stream=true", param="stream_options")
    prompt_top = fields.get("prompt_logprobs", _INTEGER, least=0, most=_ALTERNATIVES[-1])
    if prompt_top is not None and stream:
        raise ApiError(400, "prompt_logprobs is for whole answers; leave stream out", param="prompt_logprobs")
    seed = fields.get("seed", _INTEGER)
    return Asked(
        chat=chat,
        prompts=[ids for ids, _ in prompts],
        texts=[text for _, text in prompts],
        options={
            **_sampling(fields),
            **_ends(fields, tokenizer),
            **_grammar(fields),
            **_prediction(fields),
            **_scores([prompt_top, top if echo else None]),
            "max_new_tokens": most,
            "alternatives": _alternatives(top or 0),
        },
        seed=None if seed is None else seed % 2**32,
        answers=answers,
        stream=stream,
        usage=asked_of.get("include_usage", _FLAG, default=False),
        each_usage=asked_of.get("continuous_usage_stats", _FLAG, default=False),
        echo=echo,
        top=top,
        prompt_top=prompt_top,
        return_ids=fields.get("return_token_ids", _FLAG, default=False),
    )


def _alternatives(count: int) -> int:
    """Returns the smallest number of likely tokens, at least `count`, for which there is a program."""
    return next(most for most in _ALTERNATIVES if most >= count)


def _scores(counts: Sequence[int | None]) -> dict[str, Any]:
    """Asks for log-probabilities of the prompt, with likely tokens for each use that has a count."""
    given = [count for count in counts if count is not None]
    return {"prompt_alternatives": _alternatives(max(given))} if given else {}


def _sampling(fields: _Fields) -> dict[str, Any]:
    """Reads sampling and penalties, whose defaults are OpenAI's."""
    top_k = fields.get("top_k", _INTEGER, 0)
    found: dict[str, Any] = {
        "temperature": fields.get("temperature", _NUMBER, 1.0),
        "top_p": fields.get("top_p", _NUMBER, 1.0),
        "top_k": None if top_k == -1 else top_k,
    }
    for name, (option, kind) in _OPTIONS.items():
        value = fields.get(name, kind)
        if value is not None and value != _NEUTRAL.get(name):
            found[option] = value
    biases = fields.get("logit_bias", _BIASES, {})
    return {**found, "logit_bias": {int(key): float(bias) for key, bias in biases.items()}} if biases else found


def _ends(fields: _Fields, tokenizer: Tokenizer) -> dict[str, Any]:
    """Reads what ends a text; stop strings that spell a special token become its id."""
    stops, more = fields.get("stop", _TEXTS, []), fields.get("stop_token_ids", _IDS, [])
    named: dict[str, int] = {}
    for text in (stops := [stops] if isinstance(stops, str) else stops):
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == 1 and tokenizer.is_special(ids[0]):
            named[text] = ids[0]
    ignored = fields.get("ignore_eos", _FLAG, default=False)
    found: dict[str, Any] = {"stop": [text for text in stops if text not in named]} if stops else {}
    if more or named or ignored:
        ends = () if ignored else tokenizer.eos_token_ids
        found["stop_tokens"] = tuple(dict.fromkeys([*ends, *more, *named.values()]))
    return found


def _grammar(fields: _Fields) -> dict[str, Any]:
    """Reads `response_format` and vLLM's `structured_outputs`."""
    found: dict[str, Any] = {}
    form = fields.part("response_format")
    kind = form.get("type", _TEXT, "text")
    if kind == "json_object":
        found["schema"] = dict(_ANY_OBJECT)
    elif kind == "json_schema":
        schema = form.part("json_schema").get("schema", _OBJECT)
        if schema is None:
            name = "response_format.json_schema.schema"
            raise ApiError(400, f"{name} is missing; pass the JSON schema of the answer", param=name)
        found["schema"] = schema
    elif kind != "text":
        raise ApiError(
            400,
            f"response_format.type must be text, json_object or json_schema, got {shown(kind)}",
            param="response_format.type",
        )
    structured = fields.part("structured_outputs")
    if "structural_tag" in structured:
        raise ApiError(400, "structural tags are not supported; pass json, regex, choice or grammar")
    values = {name: structured.get(name, kinds) for name, (_, kinds) in _GRAMMARS.items()}
    given = [name for name, value in values.items() if value is not None]
    if structured.get("json_object", _FLAG, default=False):
        given.append("json_object")
    named = [f"structured_outputs.{name}" for name in given]
    if len(both := ["response_format"] * bool(found) + named) > 1:
        raise ApiError(400, f"an answer keeps to one grammar, got {' and '.join(both)}; pass one", param=both[1])
    for name in given:
        option, value = ("schema", dict(_ANY_OBJECT)) if name == "json_object" else (_GRAMMARS[name][0], values[name])
        found[option] = value
    return found


def _prediction(fields: _Fields) -> dict[str, Any]:
    if "prediction" not in fields:
        return {}
    content = fields.part("prediction").get(
        "content", _Kind("a text or a list of text parts", lambda value: isinstance(value, str | list))
    )
    if isinstance(content, list):
        parts = [_Fields(part, "prediction.content") for part in content]
        content = "".join(part.get("text", _TEXT, "") for part in parts)
    return {"prediction": content} if content else {}
