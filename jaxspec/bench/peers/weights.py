"""Gives a peer its models: the files that the user has, or plain arrays that are written for it."""

import dataclasses
import tempfile
from pathlib import Path

from jaxspec.bench.peers.table import Peer
from jaxspec.nn.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Files:
    """Gives files as they are.

    Attributes:
      target: of a kind that the peer reads.
      draft: likewise, or `None`.
      dtype: of the caches: half of float32's bytes, as llama.cpp has it by itself.
    """

    target: Path
    draft: Path | None
    dtype: str = "float16"

    def give(self, peer: Peer, folder: Path) -> tuple[str, str | None]:
        """Returns the files; a peer that reads none of their kind is not to be asked."""
        return str(self.target), None if self.draft is None else str(self.draft)


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Writes models for each peer, all with the same numbers.

    Attributes:
      target: with plain arrays as weights.
      draft: a draft model with the same tokens, or `None`.
      dtype: of the weights and caches that the peers get.
    """

    target: LanguageModel
    draft: LanguageModel | None
    dtype: str

    def give(self, peer: Peer, folder: Path) -> tuple[str, str | None]:
        """Writes the models into new folders in `folder`, and returns their paths.

        Raises:
          ValueError: they are of no family that can be written, or have different numbers of tokens.
        """
        if self.draft is not None and self.draft.vocab_size != self.target.vocab_size:
            draft, target = self.draft.vocab_size, self.target.vocab_size
            raise ValueError(f"the draft model has {draft} tokens, the target {target}; pass one with the same")
        write = lambda model: str(peer.write(model, Path(tempfile.mkdtemp(dir=folder)), self.dtype))  # noqa: E731
        try:
            return write(self.target), None if self.draft is None else write(self.draft)
        except ValueError as error:
            raise ValueError(f"{error}. Leave --against out") from error


Weights = Files | Arrays
