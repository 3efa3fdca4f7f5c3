"""Holds the processes of the peers that are asked, with the models they are given."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from jaxspec.bench.peers.table import Peer
from jaxspec.bench.peers.weights import Weights
from jaxspec.bench.peers.worker import Loaded, Request, Worker
from jaxspec.bench.records import Timed

_WARM_UP = 8


class Panel:
    """Asks some peers, which answer by any of their modes.

    Attributes:
      labels: "peer mode" of each, in the order they take turns.
    """

    def __init__(self, modes: Mapping[str, tuple[Worker, str]], stop: Sequence[int]):
        """Holds the process and the mode of each label, and the token ids that end an answer."""
        self._modes, self._stop = modes, list(stop)
        self.labels = tuple(modes)
        self._cold = set(modes)

    def ask(self, label: str, prompt: list[int], max_new_tokens: int, temperature: float, key: jax.Array) -> Timed:
        """Answers one prompt, timed, for JSON; before the first of a label comes an answer that does not count.

        Raises:
          RuntimeError: the peer failed.
        """
        worker, mode = self._modes[label]
        seed = int(jax.random.bits(key) >> 1)
        request = Request(list(prompt), max_new_tokens, temperature, seed, self._stop)
        if label in self._cold:
            worker.answer(mode, dataclasses.replace(request, max_new_tokens=min(_WARM_UP, max_new_tokens)))
            self._cold.remove(label)
        ids, seconds = worker.answer(mode, request)
        return Timed(seconds=seconds, tokens=[len(ids)], ids=[ids])


@contextlib.contextmanager
def open_panel(peers: Mapping[str, Peer], weights: Weights, *, stop: Sequence[int], context: int) -> Iterator[Panel]:
    """Gives each peer its models, in a temporary folder where they must be written, and a process while `with` lasts.

    Args:
      peers: those to ask, by name.
      weights: what they are given.
      stop: the token ids that end an answer.
      context: the most tokens of prompt and answer.

    Raises:
      ValueError: the models cannot be given to a peer, or this is no CPU.
      RuntimeError: a peer did not start.
    """
    if peers and jax.default_backend() != "cpu":
        raise ValueError(f"the peers run on a CPU, got {jax.default_backend()}; set JAX_PLATFORMS=cpu")
    modes: dict[str, tuple[Worker, str]] = {}
    with tempfile.TemporaryDirectory(prefix="jaxspec-peers-") as folder, contextlib.ExitStack() as stack:
        for name, peer in peers.items():
            target, draft = weights.give(peer, Path(folder))
            worker = Worker(peer.engine, Loaded(target, draft, weights.dtype, len(os.sched_getaffinity(0)), context))
            stack.callback(worker.close)
            modes |= {f"{name} {mode}": (worker, mode) for mode in worker.modes}
        yield Panel(modes, stop)
