"""Asks the peers: defines the comparisons of a run, and the processes that answer with given models.

The model is measured as it is loaded, and as plain arrays if peers need to use the same.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from jaxspec.bench.cases import Setting
from jaxspec.bench.peers.table import PEERS, Arrays, Files, Peer, Weights
from jaxspec.bench.peers.worker import Loaded, Request, Worker
from jaxspec.bench.records import Timed
from jaxspec.checkpoints.load import load, locate
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import packed_weights
from jaxspec.training.prompts import Conversation

_WARM_UP = 8
FILE = "the file as it is"
# The number of tokens that a chat template adds to a turn, including its own system message.
_TEMPLATE = 256


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Names the weights that jaxspec and the peers answer with.

    Attributes:
      weights: the name of the weights in tables; empty if only the model's own weights are measured.
      peers: the peers to ask, by name.
      files: the files of target and draft model, which peers read as they are; `None` if plain arrays are written.
      loaded: whether jaxspec answers with the model as it is loaded, instead of with plain arrays.
      batches: numbers of requests to decode together.
    """

    weights: str
    peers: Mapping[str, Peer]
    files: Files | None
    loaded: bool
    batches: tuple[int, ...]


def comparisons(setting: Setting, loaded: LanguageModel) -> list[Comparison]:
    """Returns the comparisons of a run, in order.

    First, peers that read the target's file answer with it, alongside jaxspec's model as it is loaded. Then all answer
    with the same plain arrays, one request at a time.

    Args:
      setting: names the model and the peers.
      loaded: the model as it is loaded.
    """
    installed = {name: PEERS[name] for name in setting.against if PEERS[name].versions() is not None}
    file = locate(setting.model) if any(peer.reads for peer in installed.values()) else Path()
    readers = {name: peer for name, peer in installed.items() if peer.reads and file.name.endswith(peer.reads)}
    if not readers and not (installed and packed_weights(loaded)):
        return [Comparison("", installed, None, True, setting.batches)]
    draft = locate(setting.against_draft) if readers and setting.against_draft is not None else None
    read = draft is not None and all(draft.name.endswith(peer.reads) for peer in readers.values())
    files = Files(file, draft if read else None)
    as_it_is = Comparison(FILE, readers, files, True, setting.batches)
    if setting.file_only and readers:
        return [as_it_is]
    return [as_it_is, Comparison(f"dequantized to {loaded.dtype.name}", installed, None, False, (1,))]


class Panel:
    """Asks several peers, each in any of its modes.

    Attributes:
      labels: "peer mode" for each peer and mode, in the order in which they take turns.
    """

    def __init__(self, modes: Mapping[str, tuple[Worker, str]], stop: Sequence[int]):
        """Takes the process and the mode of each label, and the token ids that end an answer."""
        self._modes, self._stop = modes, list(stop)
        self.labels = tuple(modes)
        self._cold = set(modes)

    def ask(self, label: str, prompt: list[int], max_new_tokens: int, temperature: float, key: jax.Array) -> Timed:
        """Returns the timed answer to a prompt, for JSON; on a label's first call, after an untimed warm-up.

        Raises:
          RuntimeError: if the peer failed.
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
    """Starts a process with its models for each peer while `with` lasts; written models are in a temporary folder.

    Args:
      peers: the peers to ask, by name.
      weights: the weights that they use.
      stop: the token ids that end an answer.
      context: the maximum number of tokens of prompt and answer.

    Raises:
      ValueError: if a peer cannot use the models, or JAX does not run on a CPU.
      RuntimeError: if a peer did not start.
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


def open_peers(
    comparison: Comparison, setting: Setting, target: LanguageModel, kernels: str, questions: Sequence[Conversation]
) -> contextlib.AbstractContextManager[Panel]:
    """Opens the peers of a comparison.

    Args:
      comparison: names the peers, and the files they read, if any.
      setting: names the draft model, if any.
      target: the target as it is read; without files, its arrays are written.
      kernels: the kernels that jaxspec answers with; if these use bfloat16 weights, so do the peers.
      questions: the questions of the run.
    """
    weights: Weights | None = comparison.files
    if weights is None:
        draft = None
        if comparison.peers and setting.against_draft:
            draft = load(setting.against_draft, dtype=setting.dtype, weights="dequantized")
        weights = Arrays(target, draft, "bfloat16" if kernels == "native-bfloat16" else target.dtype.name)
    # A token has at least one byte, except those of the template.
    longest = max(sum(len(text.encode()) for text in one.texts()) for one in questions)
    context = longest + max(len(one.turns) for one in questions) * (setting.max_new_tokens + _TEMPLATE)
    context = context if target.context_length is None else min(target.context_length, context)
    stop = () if target.tokenizer is None else target.tokenizer.eos_token_ids
    return open_panel(comparison.peers, weights, stop=stop, context=context)
