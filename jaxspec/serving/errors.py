"""Errors of the server, in the form that OpenAI's clients read."""

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxspec.core.results import Status
from jaxspec.serving.handle import QueueFullError

_LOGGER = logging.getLogger("jaxspec")
# The name of each status, as vLLM has them.
KINDS: Mapping[int, str] = MappingProxyType(
    {
        400: "BadRequestError",
        401: "AuthenticationError",
        404: "NotFoundError",
        405: "MethodNotAllowedError",
        408: "RequestTimeoutError",
        413: "RequestTooLargeError",
        429: "RateLimitError",
        500: "InternalServerError",
        503: "ServiceUnavailableError",
    }
)
# From options of `Engine.submit`, which its errors name, to fields of a request.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "stop_tokens": "stop_token_ids",
        "allowed_tokens": "allowed_token_ids",
        "choices": "structured_outputs.choice",
        "schema": "response_format",
        "prompt_alternatives": "prompt_logprobs",
    }
)


class ApiError(Exception):
    """Ends a request with an HTTP status and a message.

    Example:
        >>> from jaxspec.serving.errors import ApiError
        >>> ApiError(404, "there is no model x").body()["error"]["type"]
        'NotFoundError'
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        """Takes what the client reads.

        Args:
          status: the HTTP status.
          message: what was wrong, and what to send instead.
          param: the field that was wrong, if it was one.
          retry_after: seconds after which to try again.
        """
        message = message.encode(errors="backslashreplace").decode()  # half a surrogate pair is no JSON
        super().__init__(message)
        self.status, self.message, self.param, self.retry_after = status, message, param, retry_after

    def body(self) -> dict[str, Any]:
        """Returns the JSON object of the answer."""
        kind = KINDS.get(self.status, "APIError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        if self.status == 408:  # the same would happen again
            return {"x-should-retry": "false"}
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def of_engine(error: BaseException) -> ApiError:
    """Converts an error of `Engine.submit` or of a request's result."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "the request is nested too deeply")
    if isinstance(error, TimeoutError):
        return ApiError(408, "the request was not complete within its time limit; ask for fewer tokens")
    if isinstance(error, TypeError | ValueError):
        names = [name for name in _FIELDS if re.search(rf"\b{name}\b", str(error))]
        text = re.sub(rf"\b({'|'.join(_FIELDS)})\b", lambda found: _FIELDS[found[0]], str(error))
        return ApiError(400, text, param=_FIELDS[names[0]] if names else None)
    if isinstance(error, FloatingPointError) and Status.NO_TOKEN_LEFT.name in str(error):
        return ApiError(
            400,
            "the controls of the request left no token, such as min_tokens beyond the end of a grammar; ask for less",
        )
    if isinstance(error, FloatingPointError):
        return ApiError(500, str(error))
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), retry_after=1)
    if isinstance(error, RuntimeError):
        return ApiError(503, str(error), retry_after=5)
    _LOGGER.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed; its log says why")
