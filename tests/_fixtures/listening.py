"""Serves an application over a socket of this machine."""

import contextlib
import threading

import pytest


@contextlib.contextmanager
def listening(app):
    """Yields the address of the application's `/v1`, while a thread serves it; skips the test without uvicorn."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            threading.Event().wait(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
