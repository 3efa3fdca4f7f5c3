"""Thousands of requests drawn at random, many of them wrong, and clients that leave: none is answered 5xx.

All slots are free afterwards, and the engine has the text of a lone call.
"""

import asyncio
import collections
import json
import random

import pytest

import jaxspec
from jaxspec.serving import build_app
from tests._fixtures import text_models

SEED, COUNT, AT_ONCE = 20261129, 1500, 24
CAPACITY = 64
COMPLETIONS, CHATS, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
GETS = ["/", "/health", "/version", "/metrics", "/v1/models", "/v1/models/small", "/v1/models/%ff", "/tokenizer_info"]
PATHS = [*[COMPLETIONS] * 8, *[CHATS] * 6, TOKENIZE, DETOKENIZE, "/v1/nothing"]

TEXTS = [
    "the sea",
    "hello world",
    "a",
    "grüße, 中文",
    "one two three",
    "<|end|>",
    " ",
    "\x00",
    "e\u0301\u200b",
    "😀" * 3,
]
# Values of any field, right or wrong; a lone surrogate is in JSON, and in no text.
STRANGE = [None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e-30, 1e300, 1e400, 2**31, 2**63, -(2**63), 10**400, "", "a"]
STRANGE += [
    "\ud800",
    "null",
    [],
    [1],
    [[1]],
    [[]],
    ["a"],
    [None],
    {},
    {"a": 1},
    {"type": "text"},
    {"5": 1},
    [{}],
    "[" * 99,
]
# Fields that leave a request its program, with values that are right.
CHEAP = {
    "temperature": [0, 0.3, 1, 1.7],
    "top_p": [0.1, 0.9, 1],
    "top_k": [-1, 0, 1, 5],
    "min_p": [0, 0.2],
    "seed": [0, 7, -1, 2**40],
    "n": [1, 2, 3],
    "max_tokens": [0, 1, 3, 9],
    "stop": ["e", ["th", " "], "<|end|>", []],
    "stop_token_ids": [[5], []],
    "ignore_eos": [True, False],
    "stream": [True, True, False],
    "echo": [True, False],
    "logprobs": [None, 0, 1, True],
    "cache_salt": ["one", "two"],
    "priority": [0, -5, 5],
    "return_token_ids": [True],
    "user": ["somebody"],
    "model": ["small"],
    "unknown": [{"a": [1]}],
}
# Fields that need another program; a request has at most one of them.
COSTLY = [
    {"prompt_logprobs": 1},
    {"prompt_logprobs": 0},
    {"logit_bias": {"5": 3.5, "9": -100}},
    {"logit_bias": {str(one): 0.25 for one in range(40)}},
    {"allowed_token_ids": [5, 6, 7, 8]},
    {"presence_penalty": 0.5},
    {"min_tokens": 2},
    {"bad_words": ["sea"]},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"regex": "[ab]{1,3}"}},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"grammar": 'start: "a" start "b" | "c"'}},
    {"prediction": {"type": "content", "content": "the sea"}},
]
# Fields whose strange values may be right, and would compile a program each.
WRONG_ONLY = {
    "presence_penalty": [1e400, "x", [1]],
    "frequency_penalty": [-1e400, {}],
    "repetition_penalty": [0, -1, "x", 1e-40],
    "min_tokens": [-1, 2**40, "x"],
    "bad_words": ["\ud800", [3], [""]],
    "logit_bias": [{"x": 1}, {"5": 1e400}, {"99999": 1}, [5]],
    "allowed_token_ids": [[], [10**9], [-1], ["a"], 5],
    "structured_outputs": [
        *({"regex": text} for text in ("(", "[", "(?=a)", "\\", "a{9,1}")),
        *(
            {"json": schema}
            for schema in ("{", {"type": "nothing"}, {"$ref": "#/no"}, {"pattern": "["}, {"enum": []}, 5)
        ),
        *({"grammar": text} for text in ("\ud800", "start: x", "", "start: start")),
        *({"choice": texts} for texts in ([], [""], ["a", 3], "a")),
        {"regex": "a", "choice": ["a"]},
        5,
    ],
    "response_format": [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": {}},
        "json",
        {"type": "json_object", "x": 1},
    ],
    "prediction": ["x", {"content": 5}, {"content": [{"type": "image"}, 3]}],
    "prompt_logprobs": [-1, 21, "x"],
    "suffix": ["x"],
    "functions": [[{}]],
    "audio": [{}],
    "chat_template_kwargs": [{}],
    "best_of": [0, 5],
}


def drawn(rng):
    """A method, a path and a body."""
    if rng.random() < 0.05:
        return "GET", rng.choice(GETS), b""
    path = rng.choice(PATHS)
    ids = rng.choices(range(text_models.VOCAB), k=rng.choice([1, 5, 30, 63, 64, 65]))
    messages = [{"role": rng.choice(["system", "user", "assistant", "developer"]), "content": rng.choice(TEXTS)}]
    prompts = [rng.choice(TEXTS), ids, [ids[:3], ids[:5]], rng.choices(TEXTS, k=2)]
    body = {"prompt": rng.choice(prompts)} if path != CHATS else {"messages": messages * rng.choice([1, 1, 3])}
    if path == DETOKENIZE:
        body = {"tokens": ids}
    body |= {name: rng.choice(CHEAP[name]) for name in rng.sample(sorted(CHEAP), rng.randrange(7))}
    if rng.random() < 0.1:
        body |= rng.choice(COSTLY)
    kind = rng.random()
    if kind < 0.3:
        name = rng.choice([*CHEAP, "prompt", "messages", "tokens", "stream_options", "tools", "tool_choice"])
        body[name] = rng.choice(STRANGE)
    elif kind < 0.5:
        name = rng.choice(sorted(WRONG_ONLY))
        body[name] = rng.choice(WRONG_ONLY[name])
    raw = json.dumps(body).encode()
    if rng.random() < 0.05:  # a body that was cut off, or is no JSON at all
        raw = rng.choice([raw[: rng.randrange(len(raw) + 1)], rng.randbytes(40), b"[" * 5000, b" " * 20000, b"null"])
    return rng.choice(["POST"] * 30 + ["PUT", "GET", "DELETE"]), path, raw


async def call(app, method, path, raw, leaves_after):
    """Sends a request, whose client leaves after some messages; returns the status, and the bytes that it got."""
    left, sent, status, taken = asyncio.Event(), [{"body": raw}], None, []

    async def receive():
        if sent:
            return {"type": "http.request", "more_body": False, **sent.pop()}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal status
        status = message.get("status", status)
        taken.append(message.get("body", b""))
        if leaves_after is not None and len(taken) > leaves_after:
            left.set()  # a server drops what it is given after that

    if leaves_after == 0:
        asyncio.get_running_loop().call_later(0.02, left.set)
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [], "root_path": "", "scheme": "http", "server": ("test", 80), "http_version": "1.1"}
    await asyncio.wait_for(app(scope, receive, send), 1800)  # one of low priority waits for nearly all others
    return status, b"".join(taken)


async def answers(app, count):
    """Sends requests, some at a time; returns how many had each status."""
    rng, counts, limit = random.Random(SEED), collections.Counter(), asyncio.Semaphore(AT_ONCE)

    async def one(method, path, raw, leaves_after):
        async with limit:
            status, body = await call(app, method, path, raw, leaves_after)
        assert status is None or status < 500, (method, path, raw, body)
        assert b'"code":5' not in body.replace(b" ", b""), (method, path, raw, body)  # an error within a stream
        if status is not None and 400 <= status < 499 and leaves_after is None:
            error = json.loads(body)["error"]
            assert error["code"] == status and error["message"] and error["type"]
        counts[status] += 1

    leaves = lambda: rng.choice([0, 1, 2, 4]) if rng.random() < 0.15 else None  # noqa: E731
    await asyncio.gather(*(one(*drawn(rng), leaves()) for _ in range(count)))
    return counts


@pytest.mark.slow
def test_no_request_makes_the_server_fail():
    target = text_models.history_models()[0]
    with jaxspec.Engine(target, "ngram", k=2, slots=4, capacity=CAPACITY, most_waiting=64) as engine:
        app = build_app(engine, model="small", most_bytes=16384)
        counts = asyncio.run(answers(app, COUNT))
        print(dict(counts))
        assert counts[200] > COUNT / 5 and counts[400] > COUNT / 5
        assert engine.open
        after = engine.submit("the sea", temperature=0, max_new_tokens=8).result(timeout=120.0)
        assert engine.running == engine.waiting == 0
    alone = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
    assert after.text == alone.generate("the sea", temperature=0, max_new_tokens=8, capacity=CAPACITY).text
