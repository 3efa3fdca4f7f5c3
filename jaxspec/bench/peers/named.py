"""Lists the peers by name, and what each needs."""

import dataclasses
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from jaxspec.bench.peers.files import write_folder, write_gguf
from jaxspec.nn.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another program, and what it needs.

    Attributes:
      engine: `module:Class` of a `jaxspec.bench.peers.worker.Engine`.
      packages: what must be installed for it.
      install: how.
      write: writes a model into a folder in a dtype, as the peer reads it, and returns where.
    """

    engine: str
    packages: tuple[str, ...]
    install: str
    write: Callable[[LanguageModel, Path, str], Path]

    def versions(self) -> dict[str, str] | None:
        """Returns the versions of its packages; `None` where one is not installed."""
        try:
            return {name: importlib.metadata.version(name) for name in self.packages}
        except importlib.metadata.PackageNotFoundError:
            return None


_HERE = "jaxspec.bench.peers"
PEERS: dict[str, Peer] = {
    "transformers": Peer(
        f"{_HERE}.transformers:Transformers", ("transformers", "torch"), "pip install transformers torch", write_folder
    ),
    "llama.cpp": Peer(f"{_HERE}.llama_cpp:LlamaCpp", ("xllamacpp",), "pip install xllamacpp", write_gguf),
}
