"""Runs a peer in a process of its own.

Frameworks in one process share pools of threads, and a crash. Here each has the machine while it is asked, and sleeps
while it is not.
"""

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Request:
    """Holds a prompt to continue.

    Attributes:
      prompt: token ids.
      max_new_tokens: the most tokens of the answer.
      temperature: 0 is greedy decoding; nothing else changes the distribution.
      seed: of sampling.
      stop: token ids that end the answer, and belong to it.
    """

    prompt: list[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop: list[int]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Names the models and the resources of a peer.

    Attributes:
      model: the target's file or folder.
      draft: the draft model's, or `None`.
      dtype: of their caches, and of their weights where these are written for it.
      threads: how many may run.
      context: the most tokens of prompt and answer.
    """

    model: str
    draft: str | None
    dtype: str
    threads: int
    context: int


class Engine(Protocol):
    """Answers requests as a peer, made of `Loaded`; `modes` are the names of its ways of decoding."""

    modes: tuple[str, ...]

    def answer(self, mode: str, request: Request) -> list[int]:
        """Returns the new token ids."""
        ...


class Worker:
    """Runs the process of one peer."""

    def __init__(self, engine: str, loaded: Loaded):
        """Starts it and waits until its models are loaded.

        Args:
          engine: `module:Class` of an `Engine`.
          loaded: the engine's argument.

        Raises:
          RuntimeError: it did not start; the message has its last words.
        """
        self._name = engine
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, its_own = multiprocessing.Pipe()
        with its_own:
            # A bare process, as `multiprocessing` would import the caller's main module in it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({its_own.fileno()}, {engine!r})"],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[its_own.fileno()],
                start_new_session=True,
            )
        self.modes: tuple[str, ...] = self._ask(loaded)

    def answer(self, mode: str, request: Request) -> tuple[list[int], float]:
        """Returns the new token ids, and the seconds they took.

        Raises:
          RuntimeError: it failed.
        """
        return self._ask((mode, request))

    def close(self) -> None:
        """Ends it and its own processes, in the middle of an answer too: an interrupted run waits for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._output.close()

    def _ask(self, message: Any) -> Any:
        try:
            self._connection.send(message)
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.wait()
        self._output.seek(0)
        said = self._output.read().decode(errors="replace").strip().splitlines() or ["nothing"]
        raise RuntimeError(f"the peer {self._name} ended with {self._process.returncode} and said: {said[-1]}")


def serve(descriptor: int, engine: str) -> None:
    """Loads an engine and answers requests until the connection ends; what the engine prints goes elsewhere."""
    module, name = engine.split(":")
    with Connection(descriptor) as connection:
        peer: Engine = getattr(importlib.import_module(module), name)(connection.recv())
        connection.send(peer.modes)
        while True:
            mode, request = connection.recv()
            start = time.perf_counter()
            ids = peer.answer(mode, request)
            connection.send((ids, time.perf_counter() - start))
