"""Runs a peer in a separate process.

Frameworks in one process would share thread pools, and crash together. In separate processes, each has the whole
machine while it answers, and sleeps otherwise.
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
      prompt: the token ids of the prompt.
      max_new_tokens: the maximum number of tokens of the answer.
      temperature: the sampling temperature; 0 is greedy decoding. Nothing else changes the distribution.
      seed: the seed of sampling.
      stop: the token ids that end the answer, and are part of it.
    """

    prompt: list[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop: list[int]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Describes the models and resources of a peer.

    Attributes:
      model: the target's file or folder.
      draft: the draft model's file or folder, or `None`.
      dtype: the dtype of caches, and of weights that are written for the peer.
      threads: the number of threads to use.
      context: the maximum number of tokens of prompt and answer.
    """

    model: str
    draft: str | None
    dtype: str
    threads: int
    context: int


class Engine(Protocol):
    """Answers requests as a peer; constructed from `Loaded`. `modes` names its ways of decoding."""

    modes: tuple[str, ...]

    def answer(self, mode: str, request: Request) -> list[int]:
        """Returns the new token ids."""
        ...


class Worker:
    """Runs the process of one peer."""

    def __init__(self, engine: str, loaded: Loaded):
        """Starts the process and waits until its models are loaded.

        Args:
          engine: `module:Class` of an `Engine`.
          loaded: the engine's argument.

        Raises:
          RuntimeError: if the process did not start; the message has its last line of output.
        """
        self._name = engine
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, its_own = multiprocessing.Pipe()
        with its_own:
            # A bare process, as one of `multiprocessing` would import the caller's main module.
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
          RuntimeError: if the process failed.
        """
        return self._ask((mode, request))

    def close(self) -> None:
        """Kills the process and its children, even during an answer, so that an interrupted run ends soon."""
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
    """Loads an engine and answers requests over a connection until it closes; the engine prints elsewhere."""
    module, name = engine.split(":")
    with Connection(descriptor) as connection:
        peer: Engine = getattr(importlib.import_module(module), name)(connection.recv())
        connection.send(peer.modes)
        while True:
            mode, request = connection.recv()
            start = time.perf_counter()
            ids = peer.answer(mode, request)
            connection.send((ids, time.perf_counter() - start))
