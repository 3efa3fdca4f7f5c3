"""Runs a peer in a process of its own; requests and answers are JSON lines.

Frameworks in one process share pools of threads, and a crash. Here each has the machine while it is asked, and sleeps
while it is not.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jaxspec

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt to continue.

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
class Answer:
    """A peer's answer.

    Attributes:
      ids: the new tokens.
      drafted: how many tokens were drafted; `None` where it does not tell.
      accepted: how many of them were accepted.
      seconds: how long it took; the worker measures that.
    """

    ids: list[int]
    drafted: int | None = None
    accepted: int | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The models and the resources of a peer.

    Attributes:
      model: the target's file or folder.
      draft: the draft model's, or `None`.
      dtype: of both.
      threads: how many may run.
      context: the most tokens of prompt and answer.
    """

    model: str
    draft: str | None
    dtype: str
    threads: int
    context: int


class Engine(Protocol):
    """A peer, made of `Loaded`."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Its ways of decoding, by name."""
        ...

    def answer(self, mode: str, request: Request) -> Answer:
        """Answers one request."""
        ...


class Worker:
    """The process of one peer."""

    def __init__(self, engine: str, loaded: Loaded):
        """Starts it and waits until its models are loaded.

        Args:
          engine: `module:Class` of an `Engine`.
          loaded: the engine's argument.

        Raises:
          RuntimeError: it did not start; the message has its last words.
        """
        root = str(Path(jaxspec.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._name = engine
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, engine, json.dumps(dataclasses.asdict(loaded))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        self.modes = tuple(self._reply()["modes"])

    def answer(self, mode: str, request: Request) -> Answer:
        """Answers one request, timed.

        Raises:
          RuntimeError: it failed.
        """
        line = json.dumps({"mode": mode, "request": dataclasses.asdict(request)})
        with contextlib.suppress(BrokenPipeError):  # its last words say why
            print(line, file=_pipe(self._process.stdin), flush=True)
        return Answer(**self._reply())

    def close(self) -> None:
        """Ends it, in the middle of an answer too: it has nothing to lose, and an interrupted run waits for it."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):  # a line that it did not read
            _pipe(self._process.stdin).close()
        self._process.wait()
        _pipe(self._process.stdout).close()
        self._errors.close()

    def _reply(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
        raise RuntimeError(f"the peer {self._name} ended with {self._process.returncode} and said: {said[-1]}")


def _pipe(stream: T | None) -> T:
    assert stream is not None  # `PIPE` was asked for
    return stream


def serve(engine: str, loaded: Loaded) -> None:
    """Answers the lines of standard input until it ends; what the peer itself prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, name = engine.split(":")
    peer: Engine = getattr(importlib.import_module(module), name)(loaded)
    print(json.dumps({"modes": peer.modes}), file=replies, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        request = Request(**asked["request"])
        start = time.perf_counter()
        answer = peer.answer(asked["mode"], request)
        seconds = time.perf_counter() - start
        print(json.dumps(dataclasses.asdict(answer) | {"seconds": seconds}), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Loaded(**json.loads(sys.argv[2])))
