"""Describes the server in OpenAPI's form, by the tables that read its requests."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxspec._version import __version__
from jaxspec.serving.errors import KINDS
from jaxspec.serving.table import CHAT, COMPLETION, DETOKENIZE, TEXT_PART, TOKENIZE, Table

_COMPONENTS = "#/components/schemas/"
_TEXT, _NULL = MappingProxyType({"type": "string"}), MappingProxyType({"type": "null"})
_INTEGER = MappingProxyType({"type": "integer", "minimum": 0})
_NUMBER = MappingProxyType({"type": "number"})
# Fields that count new tokens, of which at most as many as fit a slot may be asked for.
_COUNTS = ("max_tokens", "max_completion_tokens")
_OTHER_ERRORS = (400, 404, 408, 413, 429, 503)


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _COMPONENTS + name}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, _NULL]}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(needed: Mapping[str, Any], others: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the schema of an object with fields that it must have, and others."""
    return {"type": "object", "required": list(needed), "properties": {**needed, **others}}


def _request(table: Table, needed: Sequence[str] = (), most: int | None = None) -> dict[str, Any]:
    """Returns the schema of the fields of a table; null is as good as no field, but for those that are needed."""
    found = {}
    for name, field in table.items():
        schema = dict(field.kind.schema) if field.parts is None else _request(field.parts)
        bounds = {"minimum": field.least, "maximum": most if name in _COUNTS and most is not None else field.most}
        schema |= {bound: value for bound, value in bounds.items() if value is not None}
        schema = schema if name in needed or schema == _NULL else _or_null(schema)
        default = {} if field.default is None else {"default": field.default}
        found[name] = {**schema, "description": field.about, **default}
    return {"type": "object", "properties": found, **({"required": list(needed)} if needed else {})}


def _text_answer(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of an answer of a kind, with the content of a choice."""
    prompt = _or_null(_list(_or_null({"type": "object", "additionalProperties": _ref("PromptToken")})))
    choice = {
        "index": _INTEGER,
        **content,
        "finish_reason": {"enum": ["stop", "length", "tool_calls", "error"]},
        "stop_reason": {"anyOf": [_TEXT, _INTEGER, _NULL]},
    }
    extras = {"seed": _or_null(_INTEGER), "token_ids": _list(_ref("Token")), "prompt_logprobs": prompt}
    needed = {
        "id": _TEXT,
        "object": {"const": kind},
        "created": _INTEGER,
        "model": _TEXT,
        "choices": _list(_object(choice, extras)),
        "usage": _ref("Usage"),
    }
    return _object(needed, {"metrics": {"type": "object"}, "prompt_logprobs": prompt})


def _answers() -> dict[str, Any]:
    """Returns the schemas of answers."""
    entry = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(_INTEGER)}
    chat_log_probs = _object(
        {"content": _list(_object({**entry, "top_logprobs": _list(_object(entry))})), "refusal": _NULL}
    )
    log_probs = _object(
        {
            "tokens": _list(_TEXT),
            "token_logprobs": _list(_or_null(_NUMBER)),
            "top_logprobs": _or_null(_list(_or_null({"type": "object", "additionalProperties": _NUMBER}))),
            "text_offset": _list(_INTEGER),
        }
    )
    call = {"id": _TEXT, "type": {"const": "function"}, "function": _object({"name": _TEXT, "arguments": _TEXT})}
    message = _object(
        {"role": {"const": "assistant"}, "content": _or_null(_TEXT)},
        {"reasoning": _TEXT, "reasoning_content": _TEXT, "tool_calls": _list(_object(call))},
    )
    return {
        "Completion": _text_answer("text_completion", {"text": _TEXT, "logprobs": _or_null(log_probs)}),
        "ChatCompletion": _text_answer("chat.completion", {"message": message, "logprobs": _or_null(chat_log_probs)}),
        "Usage": _object(
            {
                "prompt_tokens": _INTEGER,
                "completion_tokens": _INTEGER,
                "total_tokens": _INTEGER,
                "prompt_tokens_details": _object({"cached_tokens": _INTEGER}),
                "completion_tokens_details": _object({"reasoning_tokens": _INTEGER}),
            }
        ),
        "PromptToken": _object({"logprob": _NUMBER, "rank": _INTEGER, "decoded_token": _TEXT}),
        "Model": _object(
            {
                "id": _TEXT,
                "object": {"const": "model"},
                "created": _INTEGER,
                "owned_by": _TEXT,
                "max_model_len": _INTEGER,
            }
        ),
        "Models": _object({"object": {"const": "list"}, "data": _list(_ref("Model"))}),
        "Tokens": _object(
            {"count": _INTEGER, "max_model_len": _INTEGER, "tokens": _list(_ref("Token"))},
            {"token_strs": _or_null(_list(_TEXT))},
        ),
        "Prompt": _object({"prompt": _TEXT}),
        "TokenizerInfo": _object(
            {
                "tokenizer_class": _TEXT,
                "vocab_size": _INTEGER,
                "eos_token": _or_null(_TEXT),
                "bos_token": _or_null(_TEXT),
                "model_max_length": _INTEGER,
            }
        ),
        "Error": _object(
            {
                "error": _object(
                    {
                        "message": _TEXT,
                        "type": {"enum": [*KINDS.values(), "APIError"]},
                        "param": _or_null(_TEXT),
                        "code": _INTEGER,
                    }
                )
            }
        ),
        "Version": _object({"version": _TEXT}),
        "Load": _object({"server_load": _INTEGER}),
    }


def _schemas(vocab_size: int, capacity: int) -> dict[str, Any]:
    function = _object({"name": {**_TEXT, "minLength": 1}}, {"parameters": _or_null({"type": "object"})})
    named = {"type": "object", "required": ["function"]}
    arguments = _or_null({"anyOf": [_TEXT, {"type": "object"}]})
    called = _object({"name": _TEXT}, {"arguments": arguments})
    calls = _list({**named, "properties": {"function": called}})
    content = {"anyOf": [_TEXT, _list(_ref("TextPart"))]}
    says = _object({"role": _TEXT, "content": content}, {"tool_calls": _or_null(calls)})
    acts = _object(
        {"role": {"const": "assistant"}, "tool_calls": {**calls, "minItems": 1}}, {"content": _or_null(content)}
    )
    thinks = _object(
        {"role": {"const": "assistant"}, "reasoning_content": {**_TEXT, "minLength": 1}}, {"content": _NULL}
    )
    requests = {
        "CompletionRequest": _request(COMPLETION, ["prompt"], capacity - 1),
        "ChatRequest": _request(CHAT, ["messages"], capacity - 1),
    }
    return {
        "Token": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
        "TextPart": {
            **_request(TEXT_PART, ["type", "text"]),
            "description": "A part of a text; of other kinds there are none.",
        },
        "Message": {"anyOf": [says, acts, thinks]},
        "Tool": {**named, "properties": {"type": {"const": "function"}, "function": function}},
        "NamedTool": {**named, "properties": {"function": _object({"name": _TEXT})}},
        **requests,
        "TokenizeRequest": {
            "anyOf": [_ref(name) for name in requests],
            "properties": _request(TOKENIZE)["properties"],
        },
        "DetokenizeRequest": _request(DETOKENIZE, ["tokens"]),
        **_answers(),
    }


def _answer(about: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found = {kind: {"schema": schema} for kind, schema in (content or {}).items()}
    return {"description": about, **({"content": found} if found else {})}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": _ref(name)}


def document(*, vocab_size: int, capacity: int, keyed: bool) -> dict[str, Any]:
    """Returns the OpenAPI document of a server.

    Args:
      vocab_size: the number of tokens of the tokenizer.
      capacity: the number of tokens that a slot has room for.
      keyed: whether clients must send a key.

    Example:
        >>> from jaxspec.serving.openapi import document
        >>> sorted(document(vocab_size=300, capacity=64, keyed=False)["paths"])[:3]
        ['/', '/detokenize', '/health']
    """

    def operation(about: str, answer: Mapping[str, Any], request: str | None = None, *, guarded: bool = True) -> Any:
        errors = (*_OTHER_ERRORS, 401) if keyed else _OTHER_ERRORS
        failed = {str(status): _answer(KINDS[status], _json("Error")) for status in (*errors, 500) if request}
        if guarded and keyed and not request:
            failed["401"] = _answer(KINDS[401], _json("Error"))
        body: dict[str, Any] = {}
        if request:
            body["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
        return {
            "summary": about,
            "responses": {"200": answer, **failed},
            **body,
            **({"security": []} if keyed and not guarded else {}),
        }

    stream: dict[str, Any] = {"text/event-stream": {}}
    texts = "Texts, whole or in pieces."
    post = {
        "/v1/completions": ("Continues texts.", _answer(texts, {**_json("Completion"), **stream}), "CompletionRequest"),
        "/v1/chat/completions": (
            "Answers in a conversation.",
            _answer(texts, {**_json("ChatCompletion"), **stream}),
            "ChatRequest",
        ),
        "/tokenize": ("Returns the tokens of a text.", _answer("The tokens.", _json("Tokens")), "TokenizeRequest"),
        "/detokenize": ("Returns the text of tokens.", _answer("The text.", _json("Prompt")), "DetokenizeRequest"),
    }
    model = operation("Describes a model.", _answer("The model.", _json("Model")))
    model["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
    model["responses"]["404"] = _answer(KINDS[404], _json("Error"))
    health = operation("Says whether requests are taken.", _answer("They are."), guarded=False)
    health["responses"]["503"] = _answer("They are not.")
    live = operation("Says whether the server works, also before it stops.", _answer("It does."), guarded=False)
    live["responses"]["503"] = _answer("It does not: start another one.")
    get = {
        "/": operation("Shows a page to chat with.", _answer("The page.", {"text/html": _TEXT}), guarded=False),
        "/health": health,
        "/live": live,
        "/load": operation("Counts requests.", _answer("The number.", _json("Load")), guarded=False),
        "/metrics": operation("Counts for Prometheus.", _answer("The counts.", {"text/plain": _TEXT}), guarded=False),
        "/openapi.json": operation(
            "Describes the server.", _answer("This.", {"application/json": {"type": "object"}}), guarded=False
        ),
        "/version": operation("Returns the version.", _answer("The version.", _json("Version")), guarded=False),
        "/v1/models": operation("Lists the models.", _answer("The one model.", _json("Models"))),
        "/v1/models/{name}": model,
        "/tokenizer_info": operation("Describes the tokenizer.", _answer("The tokenizer.", _json("TokenizerInfo"))),
    }
    components: dict[str, Any] = {"schemas": _schemas(vocab_size, capacity)}
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    found = {
        "openapi": "3.1.0",
        "info": {"title": "jaxspec", "version": __version__},
        "paths": {
            **{path: {"get": one} for path, one in get.items()},
            **{path: {"post": operation(*one)} for path, one in post.items()},
        },
        "components": components,
        **({"security": [{"key": []}]} if keyed else {}),
    }
    return _plain(found)


def _plain(value: Any) -> Any:
    """Returns a value of dictionaries and lists, without those that cannot be written to."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
