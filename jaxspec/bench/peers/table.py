"""Lists the peers by name: other programs that answer the same questions."""

import dataclasses
import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from jaxspec.checkpoints.export import export_folder, export_gguf
from jaxspec.nn.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Peer:
    """Names another program, and what it needs.

    Attributes:
      engine: `module:Class` of a `jaxspec.bench.peers.worker.Engine`.
      packages: what must be installed for it.
      write: writes a model into a folder in a dtype, as the peer reads it, and returns where.
      reads: what the names of files end with that it reads as they are; empty for none.
      program: what must be on the `PATH`, and tells its version where it is called with `--version`; empty for none.
    """

    engine: str
    packages: tuple[str, ...]
    write: Callable[[LanguageModel, Path, str], Path]
    reads: str = ""
    program: str = ""

    @property
    def install(self) -> str:
        """Says how it is installed."""
        return f"put {self.program} on the PATH" if self.program else f"pip install {' '.join(self.packages)}"

    def versions(self) -> dict[str, str] | None:
        """Returns the versions of its packages and of its program; `None` where one is not installed."""
        try:
            found = {name: importlib.metadata.version(name) for name in self.packages}
        except importlib.metadata.PackageNotFoundError:
            return None
        if self.program:
            if (path := shutil.which(self.program)) is None:
                return None
            told = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            found[self.program] = " ".join(told.stdout.split())
        return found


_ENGINES = "jaxspec.bench.peers"
PEERS: dict[str, Peer] = {
    "transformers": Peer(f"{_ENGINES}.transformers:Transformers", ("transformers", "torch"), export_folder),
    "llama.cpp": Peer(f"{_ENGINES}.llama_cpp:LlamaCpp", ("xllamacpp",), export_gguf, ".gguf"),
    "llama-server": Peer(f"{_ENGINES}.llama_server:LlamaServer", (), export_gguf, ".gguf", "llama-server"),
}
