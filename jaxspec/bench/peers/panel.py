"""Lists the peers by name, writes the target's weights for those of a run, and holds their processes."""

import contextlib
import dataclasses
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax

from jaxspec.bench.peers.worker import Loaded, Request, Worker
from jaxspec.bench.records import Timed
from jaxspec.checkpoints.export import export_folder, export_gguf
from jaxspec.nn.language_model import LanguageModel

_WARM_UP = 8


@dataclasses.dataclass(frozen=True)
class Peer:
    """Names another program, and what it needs.

    Attributes:
      engine: `module:Class` of a `jaxspec.bench.peers.worker.Engine`.
      packages: what must be installed for it.
      write: writes a model into a folder in a dtype, as the peer reads it, and returns where.
    """

    engine: str
    packages: tuple[str, ...]
    write: Callable[[LanguageModel, Path, str], Path]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install {' '.join(self.packages)}"

    def versions(self) -> dict[str, str] | None:
        """Returns the versions of its packages; `None` where one is not installed."""
        try:
            return {name: importlib.metadata.version(name) for name in self.packages}
        except importlib.metadata.PackageNotFoundError:
            return None


PEERS: dict[str, Peer] = {
    "transformers": Peer("jaxspec.bench.peers.transformers:Transformers", ("transformers", "torch"), export_folder),
    "llama.cpp": Peer("jaxspec.bench.peers.llama_cpp:LlamaCpp", ("xllamacpp",), export_gguf),
}


class Panel:
    """Asks some peers, which answer by any of their modes.

    Attributes:
      labels: "peer mode" of each, in the order they take turns.
    """

    def __init__(self, modes: Mapping[str, tuple[Worker, str]], stop: list[int]):
        """Holds the process and the mode of each label, and the token ids that end an answer."""
        self._modes, self._stop = modes, stop
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
def open_panel(
    peers: Mapping[str, Peer], target: LanguageModel, draft: LanguageModel | None, *, dtype: str, context: int
) -> Iterator[Panel]:
    """Writes the weights into a temporary folder and starts a process for each peer, while its `with` lasts.

    Args:
      peers: those to ask, by name.
      target: with plain arrays as weights.
      draft: a draft model for them with the same tokens, or `None`.
      dtype: of the weights that they get.
      context: the most tokens of prompt and answer.

    Raises:
      ValueError: the models are of no family that can be written, or have different numbers of tokens, or this is no
        CPU.
      RuntimeError: a peer did not start.
    """
    if peers and jax.default_backend() != "cpu":
        raise ValueError(f"the peers run on a CPU, got {jax.default_backend()}; set JAX_PLATFORMS=cpu")
    if peers and draft is not None and draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model has {draft.vocab_size} tokens, the target {target.vocab_size}; pass one with the same"
        )
    modes: dict[str, tuple[Worker, str]] = {}
    with tempfile.TemporaryDirectory(prefix="jaxspec-peers-") as folder, contextlib.ExitStack() as stack:
        for name, peer in peers.items():
            write = lambda model, peer=peer: str(peer.write(model, Path(tempfile.mkdtemp(dir=folder)), dtype))  # noqa: E731
            try:
                path, draft_path = write(target), None if draft is None else write(draft)
            except ValueError as error:
                raise ValueError(f"{error}. Leave --against out") from error
            worker = Worker(peer.engine, Loaded(path, draft_path, dtype, len(os.sched_getaffinity(0)), context))
            stack.callback(worker.close)
            modes |= {f"{name} {mode}": (worker, mode) for mode in worker.modes}
        yield Panel(modes, [] if target.tokenizer is None else list(target.tokenizer.eos_token_ids))
