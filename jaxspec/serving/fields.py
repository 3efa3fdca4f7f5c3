"""Reads the fields of completion and chat requests, under the names that OpenAI's and vLLM's clients send.

Absent fields and null mean the default; unknown fields are ignored; what cannot be honored is an error.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.validate import shown
from jaxspec.serving.conversation import Conversation, read_conversation
from jaxspec.serving.errors import ApiError
from jaxspec.serving.table import (
    ALTERNATIVES,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    MOST_CHOICES,
    ONLY,
    OPTIONS,
    REFUSED,
    TEXT_PART,
    TOKENIZE,
    Table,
    is_int,
)
from jaxspec.serving.template_reader import special_tokens

# Penalties of 0 (1 for the repetition penalty) do nothing, and are sent by many clients.
_NEUTRAL = MappingProxyType({"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0})
# From fields of vLLM's `structured_outputs` to options of `Engine.submit`.
_GRAMMARS = MappingProxyType({"json": "schema", "regex": "regex", "choice": "choices", "grammar": "grammar"})
_ANY_OBJECT = MappingProxyType({"type": "object", "additionalProperties": True})


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
      include_stop: whether a text ends with the stop string that cut it.
      named_stops: the stop strings that spell a special token, by its id.
      tokens_as_ids: whether tokens with log-probabilities are named by their ids.
      name: the end of the answer's id; a random one for `None`.

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
    include_stop: bool = False
    named_stops: Mapping[int, str] = dataclasses.field(default_factory=dict)
    tokens_as_ids: bool = False
    name: str | None = None

    def seed_of(self, choice: int) -> int | None:
        """Returns the seed of a choice: answers to one prompt have successive seeds."""
        return None if self.seed is None else (self.seed + choice % self.answers) % 2**32


class _Fields:
    """Reads the fields of one JSON object, by its table."""

    def __init__(self, values: Any, table: Table, name: str = "") -> None:
        if not isinstance(values, dict):
            raise ApiError(400, f"{name or 'the body'} must be a JSON object, got {shown(values)}", param=name or None)
        self._values = {key: value for key, value in values.items() if value is not None}
        self._table = table
        self._prefix = f"{name}." if name else ""

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field, or a default if it is absent; raises `ApiError` unless it is of its kind and in range.

        The default is that of the table unless another one is given.
        """
        field, value, full = self._table[name], self._values.get(name), self._prefix + name
        if value is None:
            return field.default if default is None else default
        if not field.kind.fits(value):
            raise ApiError(400, f"{full} must be {field.kind.text}, got {shown(value)}", param=full)
        least, most = field.least, field.most
        if (least is not None and value < least) or (most is not None and value > most):
            raise ApiError(400, f"{full} must be between {least} and {most}, got {shown(value)}", param=full)
        return field.kind.read(value)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not null."""
        return self._values

    def part(self, name: str) -> "_Fields":
        """Returns the fields of an object within this one, which has none if it is absent."""
        return _Fields(self.get(name, {}), self._table[name].parts or {}, self._prefix + name)


def read_completion(body: Any, tokenizer: Tokenizer, vocab_size: int | None = None) -> Asked:
    """Reads the body of `/v1/completions`; `vocab_size` is that of the target's logits.

    Raises:
      ApiError: a field is wrong, or cannot be honored.
    """
    fields = _Fields(body, COMPLETION)
    special = fields.get("add_special_tokens")
    prompts = [
        (tokenizer.encode(one, add_special_tokens=special), one)
        if isinstance(one, str)
        else (one, tokenizer.decode(one, skip_special_tokens=False))
        for one in _prompts(fields, tokenizer.vocab_size)
    ]
    return _asked(
        fields,
        prompts,
        tokenizer,
        vocab_size,
        chat=False,
        most=fields.get("max_tokens"),
        top=fields.get("logprobs"),
        echo=fields.get("echo"),
    )


def read_tokens(body: Any, tokenizer: Tokenizer) -> list[int]:
    """Reads the body of `/detokenize`.

    Raises:
      ApiError: it has no token ids.
    """
    found = _Fields(body, DETOKENIZE).get("tokens")
    if found is None or not all(0 <= one < tokenizer.vocab_size for one in found):
        raise ApiError(400, f"tokens must be ids from 0 to {tokenizer.vocab_size - 1}", param="tokens")
    return found


def read_token_strs(body: Any) -> bool:
    """Reads from the body of `/tokenize` whether to answer the text of each token.

    Raises:
      ApiError: it is not true or false.
    """
    return _Fields(body, TOKENIZE).get("return_token_strs")


def read_chat(body: Any, tokenizer: Tokenizer, vocab_size: int | None = None) -> Asked:
    """Reads the body of `/v1/chat/completions`; `vocab_size` is that of the target's logits.

    Raises:
      ApiError: a field is wrong, or cannot be honored.
    """
    fields = _Fields(body, CHAT)
    messages = fields.get("messages")
    if not messages:
        raise ApiError(400, 'messages must be a list such as [{"role": "user", "content": "Hello"}]', param="messages")
    if (
        fields.get("continue_final_message")
        and "add_generation_prompt" in fields
        and fields.get("add_generation_prompt")
    ):
        name = "continue_final_message"
        raise ApiError(400, f"{name} opens no turn; pass add_generation_prompt=false, or leave it out", param=name)
    fields.get("add_generation_prompt")
    conversation = read_conversation(fields.given, tokenizer)
    wanted, top = fields.get("logprobs"), fields.get("top_logprobs")
    if top and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs; pass logprobs=true", param="top_logprobs")
    asked = _asked(
        fields,
        [(conversation.ids, "")],
        tokenizer,
        vocab_size,
        chat=True,
        most=fields.get("max_completion_tokens", fields.get("max_tokens")),
        top=top if wanted else None,
    )
    return dataclasses.replace(
        asked,
        options=conversation.options(asked.options, tokenizer, vocab_size or tokenizer.vocab_size),
        conversation=conversation,
        reasoning=fields.get("include_reasoning"),
    )


def _prompts(fields: _Fields, vocab_size: int) -> list[str | list[int]]:
    value = fields.get("prompt")
    if value is None or value == [] or (isinstance(value, list) and [] in value):
        raise ApiError(400, "prompt must hold text or token ids, got none", param="prompt")
    found: list[Any] = [value] if isinstance(value, str) or is_int(value[0]) else value
    for one in found:
        if not isinstance(one, str) and not 0 <= min(one) <= max(one) < vocab_size:
            raise ApiError(400, f"prompt has a token id outside of 0 to {vocab_size - 1}", param="prompt")
    return found


def _asked(
    fields: _Fields,
    prompts: Sequence[tuple[list[int], str]],
    tokenizer: Tokenizer,
    vocab_size: int | None,
    *,
    chat: bool,
    most: int | None,
    top: int | None,
    echo: bool = False,
) -> Asked:
    """Reads the fields that completions and chats share."""
    for name, message in REFUSED.items():
        if name in fields:
            raise ApiError(400, message, param=name)
    for name, only in ONLY.items():
        if fields.get(name) is not only:
            raise ApiError(400, f"{name} can only be {str(only).lower()}; leave it out", param=name)
    answers = fields.get("n")
    if len(prompts) * answers > MOST_CHOICES:
        raise ApiError(400, f"a request has at most {MOST_CHOICES} answers, got {len(prompts) * answers}", param="n")
    if fields.get("best_of", answers) != answers:
        raise ApiError(400, f"best_of must be n, {answers}: no answers are left out", param="best_of")
    stream, asked_of = fields.get("stream"), fields.part("stream_options")
    if "stream_options" in fields and not stream:
        raise ApiError(400, "stream_options is for streams; pass stream=true", param="stream_options")
    prompt_top = fields.get("prompt_logprobs")
    if prompt_top is not None and stream:
        raise ApiError(400, "prompt_logprobs is for whole answers; leave stream out", param="prompt_logprobs")
    seed, named = fields.get("seed"), _named_stops(fields, tokenizer)
    return Asked(
        chat=chat,
        prompts=[ids for ids, _ in prompts],
        texts=[text for _, text in prompts],
        options={
            **_sampling(fields),
            **_ends(fields, tokenizer, named),
            **_grammar(fields),
            **_prediction(fields),
            **_shown(fields, tokenizer, vocab_size),
            **_scores([prompt_top, top if echo else None]),
            "max_new_tokens": most,
            "alternatives": _alternatives(top or 0),
        },
        seed=None if seed is None else seed % 2**32,
        answers=answers,
        stream=stream,
        usage=asked_of.get("include_usage"),
        each_usage=asked_of.get("continuous_usage_stats"),
        echo=echo,
        top=top,
        prompt_top=prompt_top,
        return_ids=fields.get("return_token_ids"),
        include_stop=fields.get("include_stop_str_in_output"),
        named_stops={index: text for text, index in named.items()},
        tokens_as_ids=fields.get("return_tokens_as_token_ids"),
        name=fields.get("request_id"),
    )


def _alternatives(count: int) -> int:
    """Returns the smallest number of likely tokens, at least `count`, for which there is a program."""
    return next(most for most in ALTERNATIVES if most >= count)


def _scores(counts: Sequence[int | None]) -> dict[str, Any]:
    """Asks for log-probabilities of the prompt, with likely tokens for each use that has a count."""
    given = [count for count in counts if count is not None]
    return {"prompt_alternatives": _alternatives(max(given))} if given else {}


def _sampling(fields: _Fields) -> dict[str, Any]:
    """Reads sampling and penalties, whose defaults are OpenAI's."""
    top_k = fields.get("top_k")
    found: dict[str, Any] = {
        "temperature": fields.get("temperature"),
        "top_p": fields.get("top_p"),
        "top_k": None if top_k == -1 else top_k,
    }
    for name, option in OPTIONS.items():
        value = fields.get(name)
        if name in fields and value != _NEUTRAL.get(name):
            found[option] = value
    biases = fields.get("logit_bias", {})
    return {**found, "logit_bias": {int(key): float(bias) for key, bias in biases.items()}} if biases else found


def _shown(fields: _Fields, tokenizer: Tokenizer, vocab_size: int | None) -> dict[str, Any]:
    """Reads whether special tokens are part of a text; then those that may come and do not end it."""
    if fields.get("skip_special_tokens"):
        return {}
    ends = tokenizer.eos_token_ids if fields.get("ignore_eos") else ()
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    return {"shown_tokens": tuple(one for one in (*special_tokens(tokenizer), *ends) if one < size)}


def _named_stops(fields: _Fields, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the stop strings that spell a special token, with its id."""
    stops = fields.get("stop", [])
    named = {}
    for text in [stops] if isinstance(stops, str) else stops:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == 1 and tokenizer.is_special(ids[0]):
            named[text] = ids[0]
    return named


def _ends(fields: _Fields, tokenizer: Tokenizer, named: Mapping[str, int]) -> dict[str, Any]:
    """Reads what ends a text; stop strings that spell a special token become its id."""
    stops, more = fields.get("stop", []), fields.get("stop_token_ids", [])
    stops = [stops] if isinstance(stops, str) else stops
    ignored = fields.get("ignore_eos")
    found: dict[str, Any] = {"stop": [text for text in stops if text not in named]} if stops else {}
    if more or named or ignored:
        ends = () if ignored else tokenizer.eos_token_ids
        found["stop_tokens"] = tuple(dict.fromkeys([*ends, *more, *named.values()]))
    return found


def _grammar(fields: _Fields) -> dict[str, Any]:
    """Reads `response_format` and vLLM's `structured_outputs`."""
    found: dict[str, Any] = {}
    form = fields.part("response_format")
    kind = form.get("type")
    if kind == "json_object":
        found["schema"] = dict(_ANY_OBJECT)
    elif kind == "json_schema":
        schema = form.part("json_schema").get("schema")
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
    values = {name: structured.get(name) for name in _GRAMMARS}
    given = [name for name, value in values.items() if value is not None]
    if structured.get("json_object"):
        given.append("json_object")
    named = [f"structured_outputs.{name}" for name in given]
    if len(both := ["response_format"] * bool(found) + named) > 1:
        raise ApiError(400, f"an answer keeps to one grammar, got {' and '.join(both)}; pass one", param=both[1])
    for name in given:
        option, value = ("schema", dict(_ANY_OBJECT)) if name == "json_object" else (_GRAMMARS[name], values[name])
        found[option] = value
    return found


def _prediction(fields: _Fields) -> dict[str, Any]:
    if "prediction" not in fields:
        return {}
    content = fields.part("prediction").get("content")
    if isinstance(content, list):
        parts = [_Fields(part, TEXT_PART, "prediction.content") for part in content]
        if any(part.get("type") is None or part.get("text") is None for part in parts):
            name = "prediction.content"
            raise ApiError(400, f'{name} must be a text, or parts {{"type": "text", "text": "..."}}', param=name)
        content = "".join(part.get("text") for part in parts)
    return {"prediction": content} if content else {}
