"""Renders chat templates within limits of time, memory and output, in one process that all tokenizers share."""

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoints import chat_worker

# For a process that is stopped or starved; one that computes is ended by its limit of CPU time long before, where the
# system has such limits.
_SECONDS = 60.0 if chat_worker.resource is not None else 10.0
_MOST_REPLY = 16 * chat_worker.CHARACTERS
# What a message's reasoning may be called; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool,
) -> str:
    """Renders a conversation as transformers does.

    Args:
      template: a chat template, in the language of jinja2.
      messages: dictionaries with `role`, `content` and what else the template reads.
      special_tokens: the texts of the tokens that the template may name.
      add_generation_prompt: whether to open the assistant's next turn.

    Raises:
      TypeError: a message holds what JSON has not.
      ValueError: the template is wrong, raises an error, or needs more time, memory or output than a chat may.
    """
    variables = {**special_tokens, "messages": [_message(one) for one in messages]}
    variables |= {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
    request = {"template": template, "variables": variables, "seconds": chat_worker.CPU_SECONDS}
    answer = _shared.ask(json.dumps(request).encode() + b"\n")
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["text"]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Drops what is `None`, and gives reasoning the names that templates read, as transformers does."""
    values = {name: value for name, value in message.items() if value is not None}
    found = [values[name] for name in _REASONING if name in values]
    return {"thinking": found[0], **values, "reasoning_content": found[0]} if found else values


class _Worker:
    """Runs `chat_worker.py`, which ends with this process, as its standard input does."""

    def __init__(self):
        specs = [importlib.util.find_spec(name) for name in ("jinja2", "markupsafe")]
        paths = sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin})
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", chat_worker.__file__, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a buffer would be copied by forks, and written twice
            start_new_session=True,  # Control-C at the terminal is for this process, not for that one
        )

    def ask(self, request: bytes) -> dict[str, str]:
        """Returns the answer to a line of JSON; raises `ValueError`, and ends the process, if there is none."""
        timer = threading.Timer(_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        reply = b""
        try:
            with contextlib.suppress(OSError):  # of a process that has ended
                self._send(request)
                reply = self._receive()
        finally:
            timer.cancel()
            if not reply.endswith(b"\n"):
                self.stop()
        if not reply.endswith(b"\n"):
            raise ValueError(self._reason())
        return json.loads(reply)

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()

    def _send(self, request: bytes) -> None:
        assert self.process.stdin is not None
        rest = memoryview(request)
        while rest:
            rest = rest[self.process.stdin.write(rest) :]

    def _receive(self) -> bytes:
        assert self.process.stdout is not None
        parts, count = [b""], 0
        while not parts[-1].endswith(b"\n") and count < _MOST_REPLY:
            parts.append(self.process.stdout.read(2**20))
            count += len(parts[-1])
            if not parts[-1]:
                break
        return b"".join(parts)

    def _reason(self) -> str:
        status = self.process.wait()
        if os.name == "posix" and status == -signal.SIGXCPU:
            return f"the template takes more than {chat_worker.CPU_SECONDS} seconds"
        return f"the process that renders it ended with status {status}"


class _Shared:
    """Holds the one worker of this process, started by the first template."""

    def __init__(self):
        self.lock, self.worker = threading.Lock(), None

    def forget(self) -> None:
        """Leaves the worker to the process that started it: a fork must not read what its parent asked for."""
        if self.worker is not None:
            self.worker.process.returncode = 0  # for `subprocess`, which would warn of it
        self.lock, self.worker = threading.Lock(), None

    def ask(self, request: bytes) -> dict[str, str]:
        with self.lock:
            if self.worker is None or self.worker.process.poll() is not None:
                self.worker = _Worker()
            return self.worker.ask(request)

    def stop(self) -> None:
        """Ends the worker, if there is one."""
        if self.worker is not None:
            self.worker.stop()


_shared = _Shared()
atexit.register(_shared.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.forget)
