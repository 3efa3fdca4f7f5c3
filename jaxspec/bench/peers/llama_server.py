"""Runs llama.cpp's own server, as the user has built it: plain, n-gram lookup, and a draft model."""

import atexit
import contextlib
import http.client
import json
import socket
import subprocess
import time
from typing import Any

from jaxspec.bench.peers.completion import CACHES, LOOKUP, LOOKUP_KEY, body, token_ids
from jaxspec.bench.peers.worker import Loaded, Request

_PROGRAM = "llama-server"
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05


class LlamaServer:
    """Runs a process for each mode, which are asked by HTTP; all end with this one."""

    def __init__(self, loaded: Loaded):
        """Starts a server for each mode, and waits until they have loaded the models."""
        self._servers = {"plain": _Server(loaded, "none"), "lookup": _Server(loaded, "ngram-simple", *_lookup())}
        if loaded.draft is not None:
            self._servers["draft"] = _Server(loaded, "draft-simple", *_draft(loaded, loaded.draft))
        self.modes = tuple(self._servers)
        for server in self._servers.values():
            server.wait()

    def answer(self, mode: str, request: Request) -> list[int]:
        return token_ids(self._servers[mode].post("/completion", body(request)))


class _Server:
    """Runs one process, and asks it."""

    def __init__(self, loaded: Loaded, speculation: str, *further: str):
        with socket.socket() as free:
            free.bind((_HOST, 0))
            self._port = free.getsockname()[1]
        threads, cache = str(loaded.threads), CACHES[loaded.dtype].lower()
        command = [_PROGRAM, "--host", _HOST, "--port", str(self._port), "--model", loaded.model, "--offline"]
        command += ["--ctx-size", str(loaded.context), "--parallel", "1", "--n-gpu-layers", "0", "--cache-ram", "0"]
        command += ["--threads", threads, "--threads-batch", threads, "--cache-type-k", cache, "--cache-type-v", cache]
        self._process = subprocess.Popen([*command, "--spec-type", speculation, *further])
        atexit.register(self._process.kill)

    def wait(self) -> None:
        """Waits until it is ready.

        Raises:
          RuntimeError: it ended instead; what it said went before.
        """
        while self._process.poll() is None:
            try:
                if "error" not in self._reply("GET", "/health"):
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{_PROGRAM} ended with {self._process.returncode} and did not load the model")

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Returns its reply."""
        return self._reply("POST", path, json.dumps(content))

    def _reply(self, method: str, path: str, content: str | None = None) -> dict[str, Any]:
        # One connection each: the server ends one that is not used for some seconds.
        with contextlib.closing(http.client.HTTPConnection(_HOST, self._port)) as connection:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())


def _lookup() -> list[str]:
    return ["--spec-ngram-simple-size-n", str(LOOKUP_KEY), "--spec-ngram-simple-size-m", str(LOOKUP)]


def _draft(loaded: Loaded, draft: str) -> list[str]:
    threads, cache = str(loaded.threads), CACHES[loaded.dtype].lower()
    command = ["--spec-draft-model", draft, "--spec-draft-type-k", cache, "--spec-draft-type-v", cache]
    return [*command, "--spec-draft-threads", threads, "--spec-draft-threads-batch", threads]
