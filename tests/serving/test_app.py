"""The server answers as OpenAI's clients expect, with the texts of lone calls; wrong requests say why."""

import asyncio
import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from starlette.testclient import TestClient

import jaxspec
from jaxspec.core.programs import PROGRAMS
from jaxspec.serving import build_app
from jaxspec.serving.fields import read_completion
from tests._fixtures import text_models
from tests._fixtures.listening import listening

CAPACITY = 64
GREEDY = {"temperature": 0, "max_tokens": 8}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
SEA = [{"role": "user", "content": "the sea"}]


@pytest.fixture(scope="module")
def engine():
    with jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine):
    return TestClient(build_app(engine, model="small", most_bytes=16384))


def problem(response):
    """The error of an answer."""
    error = response.json()["error"]
    assert error["code"] == response.status_code and error["type"] and error["message"]
    return response.status_code, error["param"]


def objects(response):
    """The objects of a stream, which ends as clients expect."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


WRONG = [
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, None),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
    (COMPLETIONS, {"prompt": [10**9]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 10**6}, None),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "temperature": "x"}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": -1}, None),
    (COMPLETIONS, {"prompt": "a", "top_p": 2}, None),
    (COMPLETIONS, {"prompt": "a", "top_k": -2}, None),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "a", "n": True}, "n"),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
    (COMPLETIONS, {"prompt": "a", "stop": 3}, "stop"),
    (COMPLETIONS, {"prompt": "a", "request_id": "\ud800"}, "request_id"),
    (COMPLETIONS, {"prompt": "a", "request_id": 129 * "a"}, "request_id"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, None),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"99999999": 1}}, None),
    (COMPLETIONS, {"prompt": "a", "stream_options": {}}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream"),
    (COMPLETIONS, {"prompt": "a", "allowed_token_ids": [10**9]}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "("}}, None),
    (COMPLETIONS, {"prompt": "a", "structured_outputs": {"structural_tag": "x"}}, None),
    (COMPLETIONS, {"prompt": "a", "seed": "x"}, "seed"),
    (COMPLETIONS, {"prompt": "\ud800"}, None),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"--5": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 10**400}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "temperature": 10**400}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "structured_outputs": {"json": "[" * 2000}}, None),
    (COMPLETIONS, {"prompt": "a", "structured_outputs": {"json": {"properties": {"\ud800": 3}}}}, None),
    (COMPLETIONS, {"prompt": "a", "cache_salt": 3}, "cache_salt"),
    (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    (CHATS, {"messages": SEA, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    (COMPLETIONS, {"prompt": [[1]] * 1025}, "n"),
    ("/detokenize", {"tokens": ["\ud800"]}, "tokens"),
    ("/tokenize", {"prompt": "\ud800"}, None),
    (CHATS, {}, "messages"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": ["a"]}, "messages"),
    (CHATS, {"messages": [{"content": "a"}]}, "messages"),
    (
        CHATS,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages",
    ),
    (CHATS, {"messages": SEA, "tools": [{"type": "function"}]}, "tools[0]"),
    (CHATS, {"messages": SEA, "top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"messages": SEA, "response_format": {"type": "xml"}}, "response_format.type"),
    (CHATS, {"messages": SEA, "response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    (CHATS, {"messages": SEA, "response_format": 3}, "response_format"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_what_cannot_be_honored_is_an_error_in_openai_s_form(client, path, body, param):
    status, named = problem(client.post(path, content=json.dumps(body)))
    assert (status, named) == (400, param if param else named)


def test_the_text_of_an_end_token_is_a_stop_token(engine):
    """lm-eval sends it as a stop string; as a text it never appears."""
    tokenizer = engine.decoder.tokenizer
    end = tokenizer.eos_token_ids[0]
    name = tokenizer.decode([end], skip_special_tokens=False)
    asked = read_completion({"prompt": "a", "stop": ["x", name], "ignore_eos": True}, tokenizer)
    assert (asked.options["stop"], asked.options["stop_tokens"]) == (["x"], (end,))
    assert asked.named_stops == {end: name}
    shown = read_completion({"prompt": "a", "skip_special_tokens": False, "ignore_eos": True}, tokenizer, end + 1)
    assert end in shown.options["shown_tokens"] and max(shown.options["shown_tokens"]) == end


def test_errors_of_the_router_and_of_bodies_have_the_form_too(client):
    assert problem(client.get("/v1/nothing")) == (404, None)
    wrong = client.get(COMPLETIONS)
    assert problem(wrong) == (405, None) and wrong.headers["allow"] == "POST"
    assert problem(client.post(COMPLETIONS, json={"prompt": "a", "model": "other"})) == (404, "model")
    assert problem(client.get("/v1/models/other")) == (404, "model")
    for body in (b"", b"{", b"[1]", b'"a"', b"\xff", b"[" * 4000):
        assert problem(client.post(COMPLETIONS, content=body)) == (400, None)
    assert problem(client.post(COMPLETIONS, content=b" " * 20000)) == (413, None)


def test_a_server_with_a_key_lets_nobody_else_in(engine):
    client = TestClient(build_app(engine, model="small", api_key="grüße"))
    assert problem(client.get("/v1/models")) == (401, None)
    assert problem(client.get("/v1/models", headers={"authorization": "Bearer other"})) == (401, None)
    given = {"authorization": "Bearer grüße".encode()}
    assert client.get("/v1/models", headers=given).json()["data"][0]["id"] == "small"
    assert client.get("/health").status_code == 200


def test_models_tokens_and_the_page(client, engine):
    assert client.get("/v1/models/small").json()["max_model_len"] == CAPACITY
    ids = client.post("/tokenize", json={"prompt": "the sea"}).json()["tokens"]
    assert ids == engine.decoder.tokenizer.encode("the sea")
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "the sea"}
    chat = client.post("/tokenize", json={"messages": SEA}).json()["tokens"]
    assert chat == engine.decoder.tokenizer.apply_chat_template(SEA)
    assert client.get("/tokenizer_info").json()["vocab_size"] == engine.decoder.tokenizer.vocab_size
    page = client.get("/")
    assert "sha256-" in page.headers["content-security-policy"] and "<script>" in page.text


def test_a_server_that_is_about_to_stop_refuses_requests(engine):
    app = build_app(engine, model="small")
    app.state.draining = True
    assert [TestClient(app).get(path).status_code for path in ("/health", "/live")] == [503, 200]
    answer = TestClient(app).post(COMPLETIONS, json={"prompt": "a"})
    assert problem(answer) == (503, None) and answer.headers["retry-after"]


@pytest.mark.parametrize(("argument", "wrong"), [("model", 3), ("timeout", -1), ("api_key", ""), ("most_bytes", 0)])
def test_wrong_arguments_are_named(engine, argument, wrong):
    with pytest.raises((TypeError, ValueError), match=argument):
        build_app(engine, **{"model": "small", argument: wrong})


@pytest.mark.slow
def test_texts_are_those_of_lone_calls(client, engine):
    """Greedy and seeded ones, of several prompts and answers, whole and streamed."""
    decoder = engine.decoder
    coupled = jaxspec.SpeculativeDecoder(decoder.target, "ngram", k=2, verifier=jaxspec.CoupledVerifier())
    greedy = decoder.generate("the sea", temperature=0, max_new_tokens=8, capacity=CAPACITY)
    body = {"prompt": ["the sea", "hello"], "n": 2, "seed": 2**32 + 5, "temperature": 0.8, "max_tokens": 8}
    sampled = [
        coupled.generate(text, temperature=0.8, top_p=None, max_new_tokens=8, seed=seed, capacity=CAPACITY).text
        for text in ("the sea", "hello")
        for seed in (5, 6)
    ]
    found = client.post(COMPLETIONS, json={"prompt": "the sea", **GREEDY, "stop": None, "unknown": 1}).json()
    assert found["object"] == "text_completion" and found["model"] == "small"
    assert found["choices"][0]["text"] == greedy.text
    assert found["usage"]["completion_tokens"] == len(greedy.token_ids)
    choices = client.post(COMPLETIONS, json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices] == sampled
    streamed = objects(client.post(COMPLETIONS, json={**body, "stream": True}))
    parts = [choice for one in streamed for choice in one["choices"]]
    for index, text in enumerate(sampled):
        own = [part for part in parts if part["index"] == index]
        assert "".join(part["text"] for part in own) == text
        assert [part["finish_reason"] is None for part in own] == [True] * (len(own) - 1) + [False]


@pytest.mark.slow
def test_a_chat_is_streamed_with_its_counts(client, engine):
    decoder = engine.decoder
    expected = decoder.chat(SEA, temperature=0, max_new_tokens=8, capacity=CAPACITY)
    body = {"messages": SEA, "temperature": 0, "max_completion_tokens": 8, "max_tokens": 3}
    whole = client.post(CHATS, json=body).json()
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": expected.text}
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = objects(client.post(CHATS, json={**body, "stream": True, "stream_options": options}))
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(choice["delta"].get("content", "") for one in streamed for choice in one["choices"])
    assert text == expected.text
    assert {one["object"] for one in streamed} == {"chat.completion.chunk"}
    counts = [one["usage"]["completion_tokens"] for one in streamed if one["usage"]]
    assert counts == sorted(counts) and counts[-1] == len(expected.token_ids)
    assert streamed[-1]["choices"] == []
    spans = [span for one in streamed for choice in one["choices"] for span in choice.get("from_draft", [])]
    assert "".join(words for words, _ in spans) == expected.text


@pytest.mark.slow
def test_counts_of_drafts_add_up(client):
    """The identities that aiperf checks, also where a stop string cuts a run of drafts."""
    for more in ({}, {"stop": ["e"]}, {"max_tokens": 1}, {"max_tokens": 0}):
        answer = client.post(COMPLETIONS, json={"prompt": "the sea the sea", **GREEDY, **more}).json()
        found = answer["metrics"]["speculative_decoding"]
        histogram = found["acceptance_histogram"]
        assert len(histogram) == found["num_spec_tokens"] + 1
        assert sum(histogram) == found["num_spec_steps"]
        accepted = sum(count * drafts for drafts, count in enumerate(histogram))
        assert accepted == found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]


@pytest.mark.slow
def test_log_probs_and_token_ids(client, engine):
    expected = engine.decoder.generate("the sea", temperature=0, max_new_tokens=6, capacity=CAPACITY)
    body = {"prompt": "the sea", **GREEDY, "max_tokens": 6, "logprobs": 2, "return_token_ids": True}
    choice = client.post(COMPLETIONS, json=body).json()["choices"][0]
    assert choice["token_ids"] == list(expected.token_ids)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(list(expected.log_probs), abs=1e-5)
    for value, best in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
        assert max(best.values()) == value  # greedy, with the same rounding
    assert choice["logprobs"]["text_offset"][0] == 0
    chat = {"messages": SEA, **GREEDY, "logprobs": True, "top_logprobs": 3}
    content = client.post(CHATS, json=chat).json()["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in content)
    assert all(bytes(entry["bytes"]).decode(errors="replace") == entry["token"] for entry in content)


def likely(model, prompt):
    """The log-probability of every token after each token of a prompt."""
    logits = model(jnp.asarray([prompt], jnp.int32), model.init_cache(1, CAPACITY)).logits[0]
    return np.asarray(jax.nn.log_softmax(logits.astype(jnp.float32)))


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 1, 5])
def test_log_probs_of_an_echoed_prompt(client, engine, most):
    """As lm-eval reads them, which compares them as floats to see whether a token is the most likely one."""
    target, ids = engine.decoder.target, engine.decoder.tokenizer.encode("the sea is wide and the sea is old")
    greedy = engine.submit(ids[:3], temperature=0, max_new_tokens=5, stop_tokens=()).result()
    prompts = [ids, ids[:1], [*ids[:3], *greedy.token_ids]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": most, "temperature": 0, "ignore_eos": True}
    choices = client.post(COMPLETIONS, json=body).json()["choices"]
    kinds = set()
    for prompt, choice in zip(prompts, choices, strict=True):
        found, expected = choice["logprobs"], likely(target, prompt)
        values, best = found["token_logprobs"], found["top_logprobs"]
        assert len(found["tokens"]) == len(values) == len(best) == len(found["text_offset"]) == len(prompt) + most
        assert values[0] is None and best[0] is None
        assert choice["text"].startswith("".join(found["tokens"][: len(prompt)]))
        for place, token in enumerate(prompt[1:], 1):
            assert values[place] == pytest.approx(expected[place - 1, token], abs=1e-4)
            assert max(best[place].values()) == pytest.approx(expected[place - 1].max(), abs=1e-4)
            is_best = values[place] == max(best[place].values())
            assert is_best == (token == expected[place - 1].argmax())
            kinds.add(is_best)
    assert kinds == {True, False}


@pytest.mark.slow
def test_log_probs_of_prompts_of_all_lengths_share_a_program(client):
    body = {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    client.post(COMPLETIONS, json={**body, "prompt": "the sea"})
    before = PROGRAMS.first_seconds
    for length in range(1, CAPACITY - 1, 7):
        assert client.post(COMPLETIONS, json={**body, "prompt": [5] * length}).status_code == 200
    assert PROGRAMS.first_seconds == before


@pytest.mark.slow
def test_log_probs_of_a_prompt_in_vllm_s_form(client, engine):
    tokenizer, target = engine.decoder.tokenizer, engine.decoder.target
    ids = tokenizer.encode("the sea is wide")
    asked = {"prompt_logprobs": 3, **GREEDY}
    chosen = client.post(COMPLETIONS, json={**asked, "prompt": ids}).json()["choices"][0]["prompt_logprobs"]
    assert len(chosen) == len(ids) and chosen[0] is None
    for token, entry, expected in zip(ids[1:], chosen[1:], likely(target, ids), strict=False):
        order = np.argsort(-expected, kind="stable")
        assert set(entry) == {str(token), *map(str, order[:3])}
        for one, known in entry.items():
            assert known["rank"] == 1 + int((expected > expected[int(one)]).sum())
            assert known["logprob"] == pytest.approx(expected[int(one)], abs=1e-4)
            assert known["decoded_token"] == tokenizer.token_bytes(int(one), skip_special_tokens=False).decode(
                errors="replace"
            )
    chat = client.post(CHATS, json={"messages": SEA, **asked}).json()
    assert len(chat["prompt_logprobs"]) == len(tokenizer.apply_chat_template(SEA))
    streamed = objects(
        client.post(COMPLETIONS, json={"prompt": ids, **GREEDY, "echo": True, "logprobs": 0, "stream": True})
    )
    last = streamed[-1]["choices"][0]["logprobs"]
    assert last["token_logprobs"][1 : len(ids)] == [
        entry[str(one)]["logprob"] for one, entry in zip(ids[1:], chosen[1:])
    ]


def test_two_grammars_are_an_error_that_names_both(client, engine):
    form, schema = {"type": "json_object"}, {"type": "object"}
    for body, named in (
        (
            {"response_format": form, "structured_outputs": {"regex": "a"}},
            ("response_format", "structured_outputs.regex"),
        ),
        ({"structured_outputs": {"json": schema, "json_object": True}}, ("json", "json_object")),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, ("regex", "choice")),
    ):
        answer = client.post(CHATS, json={"messages": SEA, **body})
        assert problem(answer)[0] == 400 and all(name in answer.json()["error"]["message"] for name in named)
    both = {"prompt": "a", "response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}
    assert read_completion(both, engine.decoder.tokenizer).options["regex"] == "a"


@pytest.mark.slow
def test_structured_outputs_and_controls(client):
    for form in (
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}},
    ):
        text = client.post(CHATS, json={"messages": SEA, **GREEDY, **form}).json()["choices"][0]["message"]["content"]
        assert text.strip('"') in ("yes", "no")
    ended = client.post(COMPLETIONS, json={"prompt": "the sea", **GREEDY, "ignore_eos": True}).json()["choices"][0]
    assert ended["finish_reason"] == "length"
    echoed = client.post(COMPLETIONS, json={"prompt": "the sea", **GREEDY, "echo": True}).json()["choices"][0]
    assert echoed["text"].startswith("the sea")
    metrics = client.get("/metrics").text
    assert "vllm:prefix_cache_hits_total" in metrics
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="small"}' in metrics
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"vllm:{name}" in metrics


async def gone(app, body, *, after):
    """Posts a request whose client goes away after some messages; returns what was sent to it."""
    sent, left = [], asyncio.Event()
    incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) == after:
            left.set()
            await asyncio.Event().wait()  # nobody takes it

    if after == 0:
        asyncio.get_running_loop().call_later(0.05, left.set)
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": [], "query_string": b"", "root_path": ""}
    await app({**scope, "scheme": "http", "server": ("test", 80), "http_version": "1.1"}, receive, send)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slots(engine, stream):
    app = build_app(engine, model="small")
    body = {"prompt": ["the sea"] * 5, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stream": stream}
    sent = asyncio.run(gone(app, body, after=3 if stream else 0))
    assert b"[DONE]" not in b"".join(message.get("body", b"") for message in sent)
    deadline = time.monotonic() + 30
    while engine.running or engine.waiting:
        assert time.monotonic() < deadline, "the slots were not freed"
        threading.Event().wait(0.01)


@pytest.mark.slow
def test_openai_s_client(engine):
    """Over a socket: plain and streamed, sync and async, structured output, log-probabilities and errors."""
    openai = pytest.importorskip("openai")
    with listening(build_app(engine, model="small")) as url:
        given = {"base_url": url, "api_key": "none", "max_retries": 0}
        client = openai.OpenAI(**given)
        assert [one.id for one in client.models.list()] == ["small"]
        options = {"model": "small", "messages": SEA, "temperature": 0, "max_tokens": 8}
        expected = engine.decoder.chat(SEA, temperature=0, max_new_tokens=8, capacity=CAPACITY).text
        assert client.chat.completions.create(**options).choices[0].message.content == expected
        stream = client.chat.completions.create(**options, stream=True)
        assert "".join(one.choices[0].delta.content or "" for one in stream if one.choices) == expected
        assert client.completions.create(model="small", prompt="a", max_tokens=2).choices[0].finish_reason

        async def both():
            async with openai.AsyncOpenAI(**given) as own:
                found = await asyncio.gather(*(own.chat.completions.create(**options) for _ in range(3)))
            return [one.choices[0].message.content for one in found]

        assert asyncio.run(both()) == [expected] * 3
        with pytest.raises(openai.NotFoundError, match="no model"):
            client.chat.completions.create(**options | {"model": "other"})
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(**options | {"temperature": -1})
