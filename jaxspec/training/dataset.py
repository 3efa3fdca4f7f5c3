"""Reads training sets that `jaxspec data` made."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxspec.core.files import FileFormatError, reading
from jaxspec.training.batching import BatchSchedule, widths_for
from jaxspec.training.files import MANIFEST, Sequences, read_manifest, sha256

_REMAKE = "run `jaxspec data` again to remake it"


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Holds conversations as token sequences, in memory.

    Attributes:
      vocab_size: the target's.
      tokenizer: the digest of its tokenizer.
      categories: names of the kinds of questions.
      sequences: all shards of all folders, one after the other.
      shards: for each, its sha256, sequences and tokens; in the order of `sequences`.
      chosen: `[n]`, which of the sequences are in this set.
      whole_texts: whether every token but a text's first counts as one to learn, as if the target had written it.

    Example:
      >>> jaxspec.training.Dataset.open(folder)
      Traceback (most recent call last):
      ValueError: ... holds no training set; pass a folder that `jaxspec data` wrote
    """

    vocab_size: int
    tokenizer: str
    categories: tuple[str, ...]
    sequences: Sequences
    shards: tuple[tuple[str, int, int], ...]
    chosen: np.ndarray
    whole_texts: bool = False

    @classmethod
    def open(
        cls, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, unfinished: bool = False
    ) -> Self:
        """Reads one folder or several, and checks every shard's hash.

        Args:
          paths: folders that `jaxspec data` wrote, for targets of one tokenizer.
          unfinished: take the shards that there are of a set that is not finished.

        Raises:
          ValueError: a folder holds no finished set, or the tokenizers differ.
          FileFormatError: a manifest or a shard is damaged or missing.
        """
        folders = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        if not folders:
            raise ValueError("there is no folder to read; pass one that `jaxspec data` wrote")
        manifests = [manifest_of(folder, unfinished=unfinished) for folder in folders]
        first = manifests[0]["target"]
        for folder, manifest in zip(folders, manifests, strict=True):
            for name in ("tokenizer", "vocab_size"):
                if manifest["target"][name] != first[name]:
                    raise ValueError(
                        f"{folder} was made with another {name} than {folders[0]}: {manifest['target'][name]}, "
                        f"expected {first[name]}; open sets of one target's vocabulary together"
                    )
        categories = sorted({name for manifest in manifests for name in manifest["categories"]})
        parts = [
            _shard(folder, number, entry, [categories.index(name) for name in manifest["categories"]])
            for folder, manifest in zip(folders, manifests, strict=True)
            for number, entry in enumerate(manifest["shards"])
        ]
        sequences = _join(parts)
        entries = [entry for manifest in manifests for entry in manifest["shards"]]
        shards = tuple((entry["sha256"], entry["sequences"], entry["tokens"]) for entry in entries)
        chosen = np.arange(len(sequences.category))
        return cls(first["vocab_size"], first["tokenizer"], tuple(categories), sequences, shards, chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def lengths(self) -> np.ndarray:
        """`[n]` int64, tokens of each sequence."""
        return np.diff(self.sequences.offsets)[self.chosen]

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a sequence, int32, and which to learn: those of answers, or all if `whole_texts`."""
        place = self.chosen[index]
        start, end = self.sequences.offsets[place : place + 2]
        learn = np.arange(end - start) > 0 if self.whole_texts else self.sequences.answer[start:end]
        return self.sequences.tokens[start:end].astype(np.int32), learn

    def place(self, index: int) -> tuple[str, int, int]:
        """Locates a sequence: the sha256 of its shard, its number in that, and its first token's."""
        sequences, tokens = (np.cumsum([0, *(shard[i] for shard in self.shards)]) for i in (1, 2))
        place = self.chosen[index]
        shard = int(np.searchsorted(sequences, place, side="right")) - 1
        start = self.sequences.offsets[place] - tokens[shard]
        return self.shards[shard][0], int(place - sequences[shard]), int(start)

    def sizes(self, shard: str) -> tuple[int, int]:
        """Returns the numbers of sequences and tokens of the shard with this sha256."""
        return next((sequences, tokens) for known, sequences, tokens in self.shards if known == shard)

    def texts(self, shard: str) -> list[np.ndarray]:
        """Returns the tokens of all of a shard's sequences, int32, whether they are in this set or not."""
        number = next(number for number, (known, _, _) in enumerate(self.shards) if known == shard)
        first = sum(sequences for _, sequences, _ in self.shards[:number])
        offsets = self.sequences.offsets[first : first + self.shards[number][1] + 1]
        texts = np.split(self.sequences.tokens[offsets[0] : offsets[-1]], offsets[1:-1] - offsets[0])
        return [text.astype(np.int32) for text in texts]

    def category(self, index: int) -> str:
        """Returns the kind of question of a sequence."""
        return self.categories[self.sequences.category[self.chosen[index]]]

    def counts(self) -> dict[str, int]:
        """Counts the sequences of each category."""
        return dict(sorted(collections.Counter(self.category(index) for index in range(len(self))).items()))

    def token_counts(self) -> np.ndarray:
        """Counts each token in the answers, `[v]` int64; with `whole_texts` and no answers, in the texts."""
        part = np.zeros(len(self.sequences.category), np.bool_)
        part[self.chosen] = True
        texts = np.repeat(part, np.diff(self.sequences.offsets))
        counted = self.sequences.answer & texts
        if self.whole_texts and not counted.any():
            counted = texts
        return np.bincount(self.sequences.tokens[counted], minlength=self.vocab_size).astype(np.int64)

    def split(self, validation: int) -> tuple["Dataset", "Dataset"]:
        """Sets apart at least `validation` sequences, to be told from the rest by their conversations' hashes.

        Conversations with the same user's turns stay together, whatever the answers and wherever they stand; a set
        with more conversations sets apart nearly the same ones.

        Returns:
          The sequences to train on, and those to validate with.

        Raises:
          ValueError: that would leave nothing to train on.
        """
        if validation < 0:
            raise ValueError(f"validation must be at least 0, got {validation}")
        hashes = self.sequences.conversation[self.chosen]
        limit = np.sort(hashes)[validation - 1] if 0 < validation < len(self) else None
        aside = np.zeros(len(self), np.bool_) if limit is None else hashes <= limit
        if validation >= len(self) or aside.all():
            raise ValueError(f"validation is {validation}, which leaves none of {len(self)} sequences to train on")
        return self._only(~aside), self._only(aside)

    def batches(
        self, *, batch_tokens: int, seed: int = 0, devices: int = 1, widths: Sequence[int] | None = None
    ) -> BatchSchedule:
        """Lays out the batches to train with, of sequences of any length if `widths` is `None`.

        Args:
          batch_tokens: tokens a batch, padding included.
          seed: of the shuffles, at least 0.
          devices: rows are a multiple of it.
          widths: ascending; a sequence is padded to the least width that holds it.

        Raises:
          ValueError: for arguments that do not fit.
        """
        widths = widths_for(int(self.lengths.max(initial=0))) if widths is None else widths
        return BatchSchedule(
            self.lengths, self.read, batch_tokens=batch_tokens, seed=seed, devices=devices, widths=widths
        )

    def _only(self, mask: np.ndarray) -> "Dataset":
        """Returns the sequences of a mask."""
        return dataclasses.replace(self, chosen=self.chosen[mask])


def manifest_of(folder: Path, *, unfinished: bool = False) -> dict[str, Any]:
    """Reads the manifest of a set that can be used.

    Raises:
      ValueError: there is none, or the set is not finished.
      FileFormatError: it is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no training set; pass a folder that `jaxspec data` wrote")
    if not manifest["shards"] or not (manifest["complete"] or unfinished):
        raise ValueError(f"the training set in {folder} is not finished; run `jaxspec data` again to go on with it")
    return manifest


def _shard(folder: Path, number: int, entry: dict[str, Any], category_names: list[int]) -> Sequences:
    """Reads a shard, and compares it with its entry in the manifest."""
    path = folder / entry["file"]
    with reading(path, advice=_REMAKE):
        data = path.read_bytes()
        if sha256(data) != entry["sha256"]:
            raise FileFormatError(path, "", "its SHA-256 is not the manifest's", _REMAKE)
        sequences = Sequences.from_bytes(data)
        category = np.asarray(category_names, np.int32)[sequences.category]
    for name, array in (("sequences", sequences.category), ("tokens", sequences.tokens)):
        if len(array) != entry[name]:
            problem = f"expected {len(array)}, as in {path.name}, got {entry[name]}"
            raise FileFormatError(folder / MANIFEST, f"shards[{number}]: {name}", problem, _REMAKE)
    return dataclasses.replace(sequences, category=category)


def _join(parts: list[Sequences]) -> Sequences:
    """Concatenates sequences."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("tokens", "answer", "category", "conversation")
    }
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Sequences(offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), **joined)
