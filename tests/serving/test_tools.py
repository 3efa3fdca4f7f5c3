"""Calls and thinking over HTTP: whole answers, streams, and OpenAI's client, with drafts and without."""

import json

import pytest
from starlette.testclient import TestClient

import jaxspec
from jaxspec.serving import build_app
from tests._fixtures import scripted
from tests._fixtures.listening import listening

CHATS = "/v1/chat/completions"
TOKENIZER = scripted.tokenizer()
NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": NUMBER}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
TEXTS = [
    f"See.\n{CALL}\n{CALL}",
    "<think>\nso it is\n</think>\n\nthe sea",
    f"<think>\nso\n</think>\n\n{CALL}",
    "<think>on and on and on",
    "the sea is deep",
    '{"no":1}',
]


@pytest.fixture(scope="module")
def engine():
    target = scripted.model(TOKENIZER, TEXTS)
    with jaxspec.Engine(
        target, jaxspec.NGramDrafter(k=4, min_ngram=1), tokenizer=TOKENIZER, slots=2, capacity=256
    ) as one:
        yield one


@pytest.fixture(scope="module")
def client(engine):
    return TestClient(build_app(engine, model="small"))


def asked(name, **more):
    return {"messages": scripted.asks(name), "temperature": 0, "max_tokens": 100, **more}


def streamed(client, body):
    """The message and the end of a streamed answer, put together as clients do."""
    lines = [line for line in client.post(CHATS, json={**body, "stream": True}).text.split("\n\n") if line]
    message, calls, reason = {"role": "assistant", "content": ""}, [], None
    for line in lines[:-1]:
        [choice] = json.loads(line.removeprefix("data: "))["choices"]
        delta = choice["delta"]
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for one in delta.get("tool_calls", ()):
            if "id" in one:
                assert one["index"] == len(calls) and one["function"]["arguments"] == ""
                calls.append({name: one[name] for name in ("id", "type")} | {"function": dict(one["function"])})
            else:
                calls[one["index"]]["function"]["arguments"] += one["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    if calls:
        message["tool_calls"] = calls
    if not message["content"] and (calls or "reasoning" in message):
        message["content"] = None
    return message, reason


def whole(client, body):
    [choice] = client.post(CHATS, json=body).json()["choices"]
    return choice["message"], choice["finish_reason"]


def without_ids(message):
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"calls": calls}


WITHOUT_MARKS = TEXTS[0].replace("<tool_call>", "").replace("</tool_call>", "")  # they are special tokens
ADDED = {"name": "add", "arguments": '{"x": 1}'}
ANSWERS = [
    (asked("a", tools=TOOLS), {"content": "See.", "calls": [ADDED, ADDED]}, "tool_calls"),
    (asked("a", tools=TOOLS, parallel_tool_calls=False), {"content": "See.", "calls": [ADDED]}, "tool_calls"),
    (asked("a", tools=TOOLS, tool_choice="none"), {"content": WITHOUT_MARKS, "calls": []}, "stop"),
    (asked("b"), {"content": "the sea", "reasoning": "so it is", "calls": []}, "stop"),
    (asked("b", include_reasoning=False), {"content": "the sea", "calls": []}, "stop"),
    (asked("c", tools=TOOLS), {"content": None, "reasoning": "so", "calls": [ADDED]}, "tool_calls"),
    (asked("d", thinking_token_budget=2), {"content": None, "reasoning": "on and", "calls": []}, "stop"),
    (asked("e", tools=TOOLS), {"content": "the sea is deep", "calls": []}, "stop"),
    (asked("c", tools=TOOLS, max_tokens=3), {"content": None, "reasoning": "s", "calls": []}, "length"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("body", "expected", "reason"), ANSWERS)
def test_answers_and_streams_have_the_same_parts(client, body, expected, reason):
    for drafts in (
        {},
        {"prediction": {"type": "content", "content": TEXTS["abcdef".index(body["messages"][0]["content"])]}},
    ):
        for found, end in (whole(client, {**body, **drafts}), streamed(client, {**body, **drafts})):
            plain = without_ids(found)
            assert plain.pop("reasoning_content", None) == plain.get("reasoning")
            if "thinking_token_budget" in body:  # then it ends, and answers what it likes
                assert plain["reasoning"].startswith("on") and end in ("stop", "length")
                continue
            assert plain == {"role": "assistant", **expected} and end == reason


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("name", "bde")
def test_calls_that_must_come_keep_to_the_schema(client, choice, name):
    """Also after thinking, which a budget ends; a text that has none of it ("e") may think here first."""
    body = asked(name, tools=TOOLS, tool_choice=choice, thinking_token_budget=12, parallel_tool_calls=False)
    for found, end in (whole(client, body), streamed(client, body)):
        assert end == "tool_calls" and found["content"] is None
        [call] = found["tool_calls"]
        assert call["function"]["name"] == "add" and set(json.loads(call["function"]["arguments"])) == {"x"}


@pytest.mark.slow
def test_a_schema_waits_for_the_thinking(client):
    form = {"type": "json_schema", "json_schema": {"schema": NUMBER}}
    for name in "bf":
        body = asked(name, response_format=form)
        found, end = whole(client, body)
        assert set(json.loads(found["content"])) == {"x"} and end == "stop"
        assert found.get("reasoning") == ("so it is" if name == "b" else None)
        usage = client.post(CHATS, json=body).json()["usage"]
        assert (usage["completion_tokens_details"]["reasoning_tokens"] > 3) == (name == "b")


@pytest.mark.slow
def test_the_texts_are_those_of_lone_calls(client, engine):
    """A seeded text, with the same controls, is what the answer was made of."""
    body = asked("c", tools=TOOLS, seed=3, temperature=1.5, logprobs=True)
    ids = client.post("/tokenize", json=body).json()["tokens"]
    decoder = engine.decoder
    coupled = jaxspec.SpeculativeDecoder(
        decoder.target, decoder.drafter, tokenizer=TOKENIZER, verifier=jaxspec.CoupledVerifier()
    )
    options = jaxspec.TextOptions(temperature=1.5, top_p=None, seed=3, max_new_tokens=100)
    expected = coupled.encode(ids, options, room=256)
    [result] = jaxspec.text.decoder._generate(expected)
    [choice] = client.post(CHATS, json={**body, "return_token_ids": True}).json()["choices"]
    assert tuple(choice["token_ids"]) == result.token_ids


@pytest.mark.slow
def test_openai_s_client_puts_calls_together(engine):
    openai = pytest.importorskip("openai")
    with listening(build_app(engine, model="small")) as url:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        options = {"model": "small", **asked("a", tools=TOOLS)}
        message = client.chat.completions.create(**options).choices[0].message
        assert [(one.function.name, one.function.arguments) for one in message.tool_calls] == [("add", '{"x": 1}')] * 2
        with client.chat.completions.stream(**options) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls" and final.message.content == "See."
        assert [one.function.arguments for one in final.message.tool_calls] == ['{"x": 1}'] * 2
        assert events.count("tool_calls.function.arguments.done") == 2
        # The calls and their results go back, as the client holds them.
        turns = [
            *options["messages"],
            message.model_dump(exclude_none=True),
            *({"role": "tool", "tool_call_id": one.id, "content": "2"} for one in message.tool_calls),
        ]
        again = client.chat.completions.create(**options | {"messages": turns, "max_tokens": 1})
        assert again.usage.prompt_tokens > 20
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(**options | {"tools": [{"type": "function"}]})
