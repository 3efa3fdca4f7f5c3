"""The OpenAPI document has what the server has: its paths, its fields, and the form of its answers."""

import json

import pytest
from starlette.testclient import TestClient

import jaxspec
from jaxspec.serving import build_app
from jaxspec.serving.errors import ApiError
from jaxspec.serving.fields import read_chat, read_completion
from jaxspec.serving.openapi import document
from jaxspec.serving.table import CHAT, COMPLETION
from tests._fixtures import scripted, text_models

CAPACITY = 64
TOKENIZER = scripted.tokenizer()
FUNCTION = {"type": "function", "function": {"name": "f"}}
# Values of which each kind of field refuses one.
STRANGE = [5.5, {"a": 5}, "x", [None]]
SEA = [{"role": "user", "content": "the sea"}]


@pytest.fixture(scope="module")
def engine():
    with jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine):
    return TestClient(build_app(engine, model="small"))


def made(keyed=False):
    return document(vocab_size=TOKENIZER.vocab_size, capacity=CAPACITY, keyed=keyed)


def references(part):
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    own = {part["$ref"]} if isinstance(part, dict) and "$ref" in part else set()
    return own.union(*map(references, inner))


def test_the_paths_are_those_of_the_server(client):
    found = client.get("/openapi.json").json()
    routes = {route.path.replace(":path", ""): route.methods - {"HEAD"} for route in client.app.routes}
    assert {path: {method.upper() for method in one} for path, one in found["paths"].items()} == routes
    assert found == json.loads(json.dumps(made())) | {"components": found["components"]}
    names = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references(found) <= names


def test_a_server_with_a_key_says_where_it_is_needed():
    found = made(keyed=True)
    free = {path for path, one in found["paths"].items() for way in one.values() if way.get("security") == []}
    assert free == {"/", "/health", "/live", "/load", "/metrics", "/openapi.json", "/version"}
    assert all(
        "401" in way["responses"] for path in found["paths"].keys() - free for way in found["paths"][path].values()
    )


@pytest.mark.parametrize(
    ("table", "read", "body"),
    [(COMPLETION, read_completion, {"prompt": "a"}), (CHAT, read_chat, {"messages": SEA, "tools": [FUNCTION]})],
)
def test_every_field_of_the_table_is_read(table, read, body):
    """A value that the document does not allow is refused, by its name; the server reads the model's name itself."""
    for name, field in table.items():
        if name == "model":
            continue
        wrong = [one for one in STRANGE if not field.kind.text or not field.kind.fits(one)]
        refused = set()
        for value in wrong:
            try:
                read({**body, name: value}, TOKENIZER)
            except ApiError as error:
                refused.add((error.param or "").partition("[")[0])
        assert refused == {name}, name
    read({**body, **dict.fromkeys(table.keys() - body.keys())}, TOKENIZER)
    with pytest.raises(ApiError):
        read({**body, "n": 1.5}, TOKENIZER)
    asked = read({**body, "n": 2.0, "seed": 3.0}, TOKENIZER)  # as other servers take them
    assert (asked.answers, asked.seed) == (2, 3) and isinstance(asked.answers, int)


@pytest.mark.slow
def test_answers_have_the_form_of_the_document(client):
    jsonschema = pytest.importorskip("jsonschema")
    found = client.get("/openapi.json").json()
    logs = {"temperature": 0, "max_tokens": 3, "prompt_logprobs": 1, "return_token_ids": True, "stop": "e"}
    asked = [
        ("/v1/completions", {"prompt": ["the sea", [5, 6]], "echo": True, "logprobs": 2, **logs}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": SEA, "logprobs": True, "top_logprobs": 1, **logs}),
        ("/tokenize", {"prompt": "the sea", "return_token_strs": True}),
        ("/detokenize", {"tokens": [5, 6]}),
        ("/v1/completions", {"prompt": 5}),
        *(
            (path, None)
            for path in ("/v1/models", "/v1/models/small", "/v1/models/x", "/tokenizer_info", "/version", "/load")
        ),
    ]
    for path, body in asked:
        answer = client.get(path) if body is None else client.post(path, json=body)
        known = found["paths"]["/v1/models/{name}" if path.startswith("/v1/models/") else path]
        way = known["get" if body is None else "post"]
        if body is not None:
            schema = way["requestBody"]["content"]["application/json"]["schema"]
            fits = jsonschema.Draft202012Validator({**schema, "components": found["components"]}).is_valid(body)
            assert fits == (answer.status_code == 200), (path, body)
        schema = way["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": found["components"]}).validate(answer.json())


@pytest.mark.slow
def test_an_answer_says_what_has_ended_it(client, engine):
    """The stop string or the token of the request, as vLLM's; none for the model's own end or the limit."""
    body = {"prompt": "the sea", "temperature": 0, "max_tokens": 8}
    whole = {**body, "ignore_eos": True, "return_token_ids": True}
    choice = client.post("/v1/completions", json=whole).json()["choices"][0]
    text, token = choice["text"], choice["token_ids"][2]
    for more, expected in (
        ({"stop": ["\x00", text[1:3]]}, text[1:3]),
        ({"stop_token_ids": [token]}, token),
        ({"max_tokens": 1}, None),
    ):
        choice = client.post("/v1/completions", json={**body, **more, "return_token_ids": True}).json()["choices"][0]
        assert choice["stop_reason"] == expected and choice["finish_reason"] == ("stop" if expected else "length")
        streamed = client.post("/v1/completions", json={**body, **more, "stream": True}).text.split("\n\n")
        assert json.loads(streamed[-3].removeprefix("data: "))["choices"][0]["stop_reason"] == expected
    more = {"stop": [text[1:3]], "include_stop_str_in_output": True, "request_id": "mine", "logprobs": 0}
    given = {**body, **more, "return_tokens_as_token_ids": True}
    found = client.post("/v1/completions", json=given).json()
    assert found["choices"][0]["text"] == text[: text.index(text[1:3]) + 2] and found["id"] == "cmpl-mine"
    assert found["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")
    parts = client.post("/v1/completions", json={**given, "stream": True}).text.split("\n\n")[:-2]
    pieces = [json.loads(one.removeprefix("data: "))["choices"][0]["text"] for one in parts]
    assert "".join(pieces) == found["choices"][0]["text"]
    tokenizer = engine.decoder.tokenizer
    end = tokenizer.eos_token_ids[0]
    name = tokenizer.decode([end], skip_special_tokens=False)
    more = {"stop": [name], "include_stop_str_in_output": True, "logit_bias": {str(end): 1000.0}}
    choice = client.post("/v1/completions", json={**body, **more}).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (name, name)
    timed = client.post("/v1/completions", json={**whole, "max_tokens": 40}).json()["metrics"]
    assert timed["queue_time_ms"] >= 0 and timed["mean_itl_ms"] > 0


@pytest.mark.slow
def test_metrics_add_up(engine):
    client = TestClient(build_app(engine, model="small"))
    found = [
        client.post("/v1/completions", json={"prompt": text, "temperature": 0, "max_tokens": 9, "n": 2, **more}).json()
        for text, more in (("a", {}), ("the sea the sea", {"structured_outputs": {"regex": "(ab){4}"}}))
    ]
    lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines() if line[:1] != "#"]
    values = {name.replace('engine="0",', "").replace('model_name="small"', ""): float(one) for name, _, one in lines}
    places = [value for name, value in values.items() if "accepted_tokens_per_pos_total" in name]
    assert len(places) == 2 and places == sorted(places, reverse=True)
    assert sum(places) == values["vllm:spec_decode_num_accepted_tokens_total{}"] > 0
    new = sum(one["usage"]["completion_tokens"] for one in found)
    assert values["vllm:generation_tokens_total{}"] == new
    assert values["vllm:request_params_max_tokens_sum{}"] == 18 and values["vllm:request_params_n_sum{}"] == 4
    times = [values[f"vllm:request_{name}_time_seconds_sum{{}}"] for name in ("queue", "prefill", "decode")]
    assert sum(times) == pytest.approx(values["vllm:e2e_request_latency_seconds_sum{}"], rel=1e-3)
    assert sum(times[1:]) == pytest.approx(values["vllm:request_inference_time_seconds_sum{}"], rel=1e-3)
    assert client.get("/load").json() == {"server_load": 0}
