"""Answers requests in the form of OpenAI's batches: rows with a `custom_id`, a `method`, a `url` and a `body`."""

from collections.abc import Mapping
from typing import Any

from jaxspec.core.validate import shown
from jaxspec.serving.answers import Answers
from jaxspec.serving.engine import Engine
from jaxspec.serving.errors import ApiError, of_engine
from jaxspec.serving.fields import read_chat, read_completion
from jaxspec.serving.handle import Handle

_COMPLETIONS, _CHATS = "/v1/completions", "/v1/chat/completions"
# Options of all rows that concern these too; a body has the others.
_OPTIONS = ("priority", "timeout")


class BatchRequest:
    """Submits one request of a batch to an engine.

    Example:
        >>> from jaxspec.serving.batch import BatchRequest
        >>> row = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     found = BatchRequest(engine, {**row, "body": {"prompt": "the sea", "max_tokens": 2}}, {}).answer()
        >>> found["custom_id"], found["response"]["body"]["usage"]["completion_tokens"] <= 2
        ('a', True)
    """

    def __init__(self, engine: Engine, row: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Submits each answer that the row asks for.

        Args:
          engine: decodes them.
          row: the request.
          options: those of all rows, of which `priority` and `timeout` are read.
        """
        self._name = row.get("custom_id")
        self._handles: list[Handle] = []
        self._answers: Answers | None = None
        self._error: ApiError | None = None
        try:
            self._submit(engine, row, {name: options[name] for name in _OPTIONS if name in options})
        except (ApiError, TypeError, ValueError, RuntimeError) as error:
            if not engine.open:
                raise
            self.cancel()
            self._error = of_engine(error)

    def _submit(self, engine: Engine, row: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        if row.get("method", "POST") != "POST":
            raise ApiError(405, f"method must be POST, got {shown(row['method'])}", param="method")
        url = row.get("url")
        if url not in (_COMPLETIONS, _CHATS):
            raise ApiError(404, f"url must be {_COMPLETIONS} or {_CHATS}, got {shown(url)}", param="url")
        tokenizer, vocab_size = engine.decoder.tokenizer, engine.decoder.target.vocab_size
        body = row.get("body")
        if url == _CHATS:
            asked = read_chat(body, tokenizer, vocab_size)
        else:
            asked = read_completion(body, tokenizer, vocab_size)
        if asked.stream:
            raise ApiError(400, "a batch has no streams; leave stream out", param="stream")
        for index in range(len(asked.prompts) * asked.answers):
            ids, seed = asked.prompts[index // asked.answers], asked.seed_of(index)
            self._handles.append(engine.submit(ids, seed=seed, **{**options, **asked.options}))
        cached = lambda: sum(handle.reused_tokens for handle in self._handles[:: asked.answers])  # noqa: E731
        scores = lambda index: self._handles[index].prompt_scores  # noqa: E731
        model = str(row["body"].get("model") or "jaxspec")
        self._answers = Answers(asked, model, tokenizer, cached=cached, scores=scores)

    def cancel(self) -> None:
        """Drops what is not complete."""
        for handle in self._handles:
            handle.cancel()

    def answer(self) -> dict[str, Any]:
        """Waits for the results, and returns the line of the answer; `failed` says whether it has an error."""
        error, body = self._error, {}
        if self._answers is not None and error is None:
            try:
                body = self._answers.whole([handle.result() for handle in self._handles])
            except (TypeError, ValueError, FloatingPointError, TimeoutError) as raised:
                self.cancel()
                error = of_engine(raised)
        if error is not None:
            body = error.body()
        name = f"batch_req_{self._name}"
        response = {"status_code": 200 if error is None else error.status, "request_id": name, "body": body}
        return {"id": name, "custom_id": self._name, "response": response, "error": None}


def is_batch(row: Any) -> bool:
    """Returns whether a row is a request of a batch, or the answer to one."""
    return isinstance(row, Mapping) and "custom_id" in row


def failed(answer: Mapping[str, Any]) -> bool:
    """Returns whether the answer to a request of a batch is an error.

    Example:
        >>> from jaxspec.serving.batch import failed
        >>> failed({"custom_id": "a", "response": {"status_code": 400, "body": {}}})
        True
    """
    return answer["response"]["status_code"] != 200
