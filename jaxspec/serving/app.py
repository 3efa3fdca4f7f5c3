"""Builds the web application: OpenAI's endpoints over an `Engine`."""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from jaxspec._version import __version__
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core import validate
from jaxspec.io.files import json_value
from jaxspec.serving.answers import Answers
from jaxspec.serving.engine import Engine
from jaxspec.serving.errors import ApiError, of_engine
from jaxspec.serving.events import Events, disconnected, first_of
from jaxspec.serving.fields import Asked, read_chat, read_completion, read_token_strs, read_tokens
from jaxspec.serving.handle import CancelledError, Handle, QueueFullError
from jaxspec.serving.metrics import Metrics
from jaxspec.serving.openapi import document
from jaxspec.serving.page import read_page
from jaxspec.text.detokenizer import token_text
from jaxspec.text.result import TextResult

_LOGGER = logging.getLogger("jaxspec")
# The largest body of a request, in bytes.
_MOST_BYTES = 16 * 2**20
# Seconds within which a body must arrive.
_MOST_SECONDS = 60.0
# Ends a stream.
_DONE = "[DONE]"
_Endpoint = Callable[[Request], Awaitable[Any]]


def build_app(
    engine: Engine,
    *,
    model: str,
    api_key: str | None = None,
    timeout: float | None = None,
    most_bytes: int = _MOST_BYTES,
) -> Starlette:
    """Builds an ASGI application that answers OpenAI's clients; uvicorn, Ray Serve and tests run it alike.

    `app.state.draining`, set to True, lets running requests end and refuses others, as a server does before it stops.

    Args:
      engine: decodes the requests. It stays open: whoever created it closes it.
      model: the name under which the model is served.
      api_key: the key that clients must send; `None` lets everybody in.
      timeout: seconds after which a request is dropped; `None` means no limit.
      most_bytes: the size of the largest body.

    Raises:
      TypeError, ValueError: an argument is invalid.

    Example:
        >>> engine = jaxspec.Engine(target, "ngram", slots=2, capacity=32)
        >>> app = jaxspec.serving.build_app(engine, model="small")
        >>> sorted(route.path for route in app.routes)[:3]
        ['/', '/detokenize', '/health']
        >>> engine.close()
    """
    validate.instance("engine", engine, Engine, "pass jaxspec.Engine(target, drafter)")
    validate.text("model", model)
    validate.counts("build_app", most_bytes=most_bytes)
    if timeout is not None:
        validate.in_range("build_app", timeout=(timeout, 0.0, float("inf")))
    if api_key is not None and not validate.text("api_key", api_key):
        raise ValueError("api_key must not be empty; leave it out to let everybody in")
    server = _Server(engine, model, api_key, timeout, most_bytes)
    app = Starlette(
        routes=[
            Route("/", server.page, methods=["GET"]),
            Route("/health", server.health, methods=["GET"]),
            Route("/version", server.version, methods=["GET"]),
            Route("/live", server.live, methods=["GET"]),
            Route("/load", server.load, methods=["GET"]),
            Route("/metrics", server.metrics, methods=["GET"]),
            Route("/openapi.json", server.openapi, methods=["GET"]),
            Route("/v1/models", server.guarded(server.models), methods=["GET"]),
            Route("/v1/models/{name:path}", server.guarded(server.one_model), methods=["GET"]),
            Route("/v1/completions", server.guarded(server.completions), methods=["POST"]),
            Route("/v1/chat/completions", server.guarded(server.chat), methods=["POST"]),
            Route("/tokenize", server.guarded(server.tokenize), methods=["POST"]),
            Route("/detokenize", server.guarded(server.detokenize), methods=["POST"]),
            Route("/tokenizer_info", server.guarded(server.tokenizer_info), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.draining = False
    return app


class _Server:
    """Holds what the endpoints share."""

    def __init__(self, engine: Engine, model: str, api_key: str | None, timeout: float | None, most_bytes: int) -> None:
        self._engine, self._model, self._api_key = engine, model, api_key
        self._timeout, self._most_bytes = timeout, most_bytes
        self._metrics = Metrics(engine, model)
        self._created = int(time.time())
        self._page, self._headers = read_page()
        self._tokenizer = engine.decoder.tokenizer
        self._document = document(
            vocab_size=self._tokenizer.vocab_size, capacity=engine.capacity, keyed=api_key is not None
        )

    def guarded(self, endpoint: _Endpoint) -> _Endpoint:
        """Checks the key before an endpoint, and answers its errors."""

        async def answer(request: Request) -> Any:
            name = request.headers.get("x-request-id") or secrets.token_hex(8)
            try:
                self._check_key(request)
                response = await endpoint(request)
            except ApiError as error:
                response = _error(error)
            if isinstance(response, Response):
                response.headers["x-request-id"] = name[:128].strip()
            return response

        return answer

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=self._headers)

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._engine.ready and not request.app.state.draining else 503)

    async def live(self, request: Request) -> Response:
        return Response(status_code=200 if self._engine.open else 503)

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def load(self, request: Request) -> Response:
        return JSONResponse({"server_load": self._engine.running + self._engine.waiting})

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=1.0.0; charset=utf-8")

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one_model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._described())

    async def completions(self, request: Request) -> Any:
        return await self._answer(request, self._read_completion)

    async def chat(self, request: Request) -> Any:
        return await self._answer(request, self._read_chat)

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        reader = self._read_chat if "messages" in body else self._read_completion
        ids = (await self._read(reader, {**body, "n": 1})).prompts[0]
        found = {"count": len(ids), "max_model_len": self._engine.capacity, "tokens": ids}
        if read_token_strs(body):
            found["token_strs"] = [token_text(self._tokenizer, one) for one in ids]
        return JSONResponse(found)

    async def detokenize(self, request: Request) -> Response:
        ids = read_tokens(await self._body(request), self._tokenizer)
        text = await asyncio.to_thread(self._tokenizer.decode, ids, skip_special_tokens=False)
        return JSONResponse({"prompt": text})

    async def tokenizer_info(self, request: Request) -> Response:
        ends = [self._tokenizer.decode([one], skip_special_tokens=False) for one in self._tokenizer.eos_token_ids]
        first = self._tokenizer.bos_token_id
        return JSONResponse(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "vocab_size": self._tokenizer.vocab_size,
                "eos_token": ends[0] if ends else None,
                "bos_token": None if first is None else self._tokenizer.decode([first], skip_special_tokens=False),
                "model_max_length": self._engine.capacity,
            }
        )

    async def _answer(self, request: Request, reader: Callable[[Any, Any], Asked]) -> Any:
        """Submits a request, and returns its answer or the stream of it."""
        if request.app.state.draining:
            self._metrics.refused("draining")
            raise ApiError(503, "the server is about to stop; send the request to another one", retry_after=5)
        body = await self._body(request)
        if (name := body.get("model")) is not None:
            self._check_model(name)
        began = time.perf_counter()
        asked = await self._read(reader, body)
        self._metrics.asked(asked.answers, asked.options["max_new_tokens"])
        handles = await asyncio.to_thread(self._submit, asked)
        cached = lambda: sum(handle.reused_tokens for handle in handles[:: asked.answers])  # noqa: E731
        scores = lambda index: handles[index].prompt_scores  # noqa: E731
        queued = lambda: handles[0].queue_seconds  # noqa: E731
        answers = Answers(asked, self._model, self._tokenizer, cached=cached, scores=scores, queued=queued)

        def close() -> None:
            for handle in handles:
                handle.cancel()

        if asked.stream:
            return Events(self._stream(answers, handles, began), close)
        try:
            results = await first_of(self._results(handles, began), disconnected(request.receive))
        except Exception as error:
            raise of_engine(error) from error
        finally:
            close()
        return Response(status_code=499) if results is None else JSONResponse(answers.whole(results))

    async def _results(self, handles: list[Handle], began: float) -> list[TextResult]:
        async def one(handle: Handle) -> TextResult:
            async for _ in self._timed(handle, began):
                pass
            return self._counted(handle, began)

        tasks = [asyncio.ensure_future(one(handle)) for handle in handles]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _stream(self, answers: Answers, handles: list[Handle], began: float) -> AsyncIterator[Any]:
        """Yields the objects of a stream, of all choices as they come."""
        news: asyncio.Queue[Any] = asyncio.Queue()
        counts = [0] * len(handles)

        async def follow(index: int, handle: Handle) -> None:
            try:
                async for piece in self._timed(handle, began):
                    news.put_nowait((index, piece))
                news.put_nowait((index, self._counted(handle, began)))
            except Exception as error:
                news.put_nowait((index, error))

        tasks = [asyncio.ensure_future(follow(*each)) for each in enumerate(handles)]
        try:
            for index in range(len(handles)):
                if (opening := answers.opening(index)) is not None:
                    yield opening
            results: dict[int, TextResult] = {}
            while len(results) < len(handles):
                index, one = await news.get()
                if isinstance(one, Exception):
                    yield of_engine(one).body()
                    yield _DONE
                    return
                if isinstance(one, TextResult):
                    results[index] = one
                    counts[index] = len(one.token_ids)
                else:
                    counts[index] += len(one.spans)
                usage = answers.usage_of(sum(counts)) if answers.asked.each_usage else None
                for part in answers.news(index, one, usage):
                    yield part
            if answers.asked.usage:
                yield answers.counts([results[index] for index in range(len(handles))])
            yield _DONE
        finally:
            for task in tasks:
                task.cancel()

    async def _timed(self, handle: Handle, began: float) -> AsyncIterator[Any]:
        """Yields the pieces of a text, and counts the time between them."""
        before: float | None = None
        async for piece in handle.pieces():
            now = time.perf_counter()
            if before is None:
                self._metrics.first(now - began)
            else:
                self._metrics.between(now - before)
            before = now
            yield piece

    def _counted(self, handle: Handle, began: float) -> TextResult:
        result = handle.result()
        reason = {"max new tokens": "length", "error": "error"}.get(result.stop_reason, "stop")
        self._metrics.ended(result, reason, time.perf_counter() - began, handle)
        return result

    def _read_chat(self, body: Any, tokenizer: Tokenizer) -> Asked:
        return read_chat(body, tokenizer, self._engine.decoder.target.vocab_size)

    def _read_completion(self, body: Mapping[str, Any], tokenizer: Tokenizer) -> Asked:
        return read_completion(body, tokenizer, self._engine.decoder.target.vocab_size)

    async def _read(self, reader: Callable[[Any, Any], Asked], body: Mapping[str, Any]) -> Asked:
        """Reads the fields of a request, which may encode long texts, in another thread."""
        try:
            return await asyncio.to_thread(reader, body, self._tokenizer)
        except Exception as error:
            raise of_engine(error) from error

    def _submit(self, asked: Asked) -> list[Handle]:
        """Submits a request for each choice: all of them, or none."""
        handles: list[Handle] = []
        try:
            for index in range(len(asked.prompts) * asked.answers):
                ids, seed = asked.prompts[index // asked.answers], asked.seed_of(index)
                handles.append(self._engine.submit(ids, seed=seed, timeout=self._timeout, **asked.options))
        except Exception as error:
            for handle in handles:
                handle.cancel()
            if isinstance(error, QueueFullError):
                self._metrics.refused("queue_full")
            raise of_engine(error) from error
        return handles

    async def _body(self, request: Request) -> Mapping[str, Any]:
        """Reads the body, up to the largest size, as a JSON object."""
        body = bytearray()
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > self._most_bytes:
                        raise ApiError(413, f"the body has more than {self._most_bytes} bytes; send less")
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {_MOST_SECONDS:.0f} s") from None
        try:
            found = json_value(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body must be JSON: {error}") from None
        if not isinstance(found, dict):
            raise ApiError(400, f"the body must be a JSON object, got {validate.shown(found)}")
        return found

    def _check_key(self, request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")
        if self._api_key is not None and not hmac.compare_digest(sent, self._api_key.encode()):
            raise ApiError(401, "the API key is missing or wrong; send it as a bearer token")

    def _check_model(self, name: Any) -> None:
        if name != self._model:
            raise ApiError(
                404, f"there is no model {validate.shown(name)}; this server has {self._model}", param="model"
            )

    def _described(self) -> dict[str, Any]:
        return {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "jaxspec",
            "max_model_len": self._engine.capacity,
        }


def _error(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    """Answers what the router refuses: an unknown path, or another method."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    advice = f"; use {allowed}" if allowed else ""
    response = _error(ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}{advice}"))
    response.headers.update(error.headers or {})
    return response


async def _failed(request: Request, error: Exception) -> Response:
    """Answers an error of the server itself, whose trace stays in its log."""
    with contextlib.suppress(CancelledError):
        _LOGGER.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _error(ApiError(500, "the server failed; its log says why"))
