"""Lists the peers, other programs that answer the same questions, by name, and gives each its models.

The models are the user's files, or plain arrays written for the peer.
"""

import dataclasses
import importlib.metadata
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from jaxspec.checkpoints.gguf import export_gguf
from jaxspec.checkpoints.huggingface import export_folder
from jaxspec.nn.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Peer:
    """Describes another program and its requirements.

    Attributes:
      engine: `module:Class` of a `jaxspec.bench.peers.worker.Engine`.
      packages: the packages that it needs.
      write: writes a model to a folder in a dtype, in the peer's format, and returns the path.
      reads: the suffix of files that the peer reads as they are; empty for none.
      program: a program that must be on the `PATH`, and prints its version with `--version`; empty for none.
    """

    engine: str
    packages: tuple[str, ...]
    write: Callable[[LanguageModel, Path, str], Path]
    reads: str = ""
    program: str = ""

    @property
    def install(self) -> str:
        """Returns how to install it."""
        return f"put {self.program} on the PATH" if self.program else f"pip install {' '.join(self.packages)}"

    def versions(self) -> dict[str, str] | None:
        """Returns the versions of its packages and its program; `None` if one is not installed."""
        try:
            found = {name: importlib.metadata.version(name) for name in self.packages}
        except importlib.metadata.PackageNotFoundError:
            return None
        if self.program:
            if (path := shutil.which(self.program)) is None:
                return None
            output = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            found[self.program] = " ".join(output.stdout.split())
        return found


_ENGINES = "jaxspec.bench.peers.engines"
PEERS: dict[str, Peer] = {
    "transformers": Peer(f"{_ENGINES}:Transformers", ("transformers", "torch"), export_folder),
    "llama.cpp": Peer(f"{_ENGINES}:LlamaCpp", ("xllamacpp",), export_gguf, ".gguf"),
    "llama-server": Peer(f"{_ENGINES}:LlamaServer", (), export_gguf, ".gguf", "llama-server"),
}


@dataclasses.dataclass(frozen=True)
class Files:
    """Gives peers the user's files.

    Attributes:
      target: the target's file, of a kind that the peer reads.
      draft: the draft model's file, of such a kind, or `None`.
      dtype: the dtype of caches: half of float32's bytes, llama.cpp's default.
    """

    target: Path
    draft: Path | None
    dtype: str = "float16"

    def give(self, peer: Peer, folder: Path) -> tuple[str, str | None]:
        """Returns the paths of the files, which the peer must be able to read."""
        return str(self.target), None if self.draft is None else str(self.draft)


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Writes models for each peer, all with equal values.

    Attributes:
      target: the target, with plain arrays as weights.
      draft: a draft model with the same vocabulary, or `None`.
      dtype: the dtype of the peers' weights and caches.
    """

    target: LanguageModel
    draft: LanguageModel | None
    dtype: str

    def give(self, peer: Peer, folder: Path) -> tuple[str, str | None]:
        """Writes the models to new folders in `folder`, and returns their paths.

        Raises:
          ValueError: if a model's family cannot be written, or the sizes of vocabularies differ.
        """
        if self.draft is not None and self.draft.vocab_size != self.target.vocab_size:
            draft, target = self.draft.vocab_size, self.target.vocab_size
            raise ValueError(f"the draft model has {draft} tokens, the target {target}; pass one with as many")
        write = lambda model: str(peer.write(model, Path(tempfile.mkdtemp(dir=folder)), self.dtype))  # noqa: E731
        try:
            return write(self.target), None if self.draft is None else write(self.draft)
        except ValueError as error:
            raise ValueError(f"{error}. Leave --against out") from error


Weights = Files | Arrays
