"""Sends server-sent events, and hears a client that goes away."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

# Seconds after which a client that takes no data is dropped.
_SLOW = 60.0

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Events:
    """Answers with a stream of JSON objects, until they end or the client is gone or too slow.

    Example:
        >>> from jaxspec.serving.events import Events
        >>> callable(Events(None, lambda: None))
        True
    """

    def __init__(self, objects: AsyncIterator[Any], close: Callable[[], None], slow: float = _SLOW) -> None:
        """Takes what to send.

        Args:
          objects: the objects; strings are sent as they are.
          close: is called at the end, however it comes.
          slow: seconds after which a client that takes no data is dropped.
        """
        self._objects, self._close, self._slow = objects, close, slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer; an ASGI application."""
        try:
            await first_of(self._write(send), disconnected(receive))
        except TimeoutError:
            pass  # the client takes no data, so no error reaches it
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        put = lambda message: asyncio.wait_for(send(message), self._slow)  # noqa: E731
        await put({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for one in self._objects:
            text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, separators=(",", ":"))
            await put({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        await put({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Waits until the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(work: Awaitable[Any], other: Awaitable[Any]) -> Any:
    """Waits for either, cancels the other, and returns the result of `work`; `None` if it was not the first."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
