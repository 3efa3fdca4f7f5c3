"""Reads training sets that `jaxspec data` made, and batches their sequences."""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Shaped

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import typed
from jaxspec.io.files import FileFormatError, reading
from jaxspec.io.manifest import sha256
from jaxspec.training.files import MANIFEST, Sequences, read_manifest


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Holds conversations, padded on the right; an empty row has length 0.

    Attributes:
      tokens: the text.
      length: the number of tokens of each row without padding.
      answer: which tokens a drafter learns to guess: the assistant's, including its stop token.
        learns to guess.
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    answer: Bool[Array, "b t"]


def at_places(x: Shaped[Array, "b t *d"], places: Int[Array, "b a"]) -> Shaped[Array, "b a *d"]:
    """Gathers values at each row's places, all of which must exist.

    The places are not checked, as this would take another pass over the result, such as distributions over the
    vocabulary.

    Args:
      x: values by row and place.
      places: the places to gather.
    """
    index = places.reshape(*places.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")


@runtime_checkable
class Schedule(Protocol):
    """Yields an endless sequence of batches."""

    def batch(self, step: int) -> Batch:
        """Returns the batch of a step; always the same one for the same step."""
        ...


@runtime_checkable
class Data(Protocol):
    """Specifies data to train on, such as a `jaxspec.training.dataset.Dataset`."""

    def token_counts(self) -> np.ndarray:
        """Returns how often each token occurs in the answers, `int64[v]`."""
        ...

    def batches(self, *, batch_tokens: int, seed: int, devices: int) -> Schedule:
        """Returns batches of about `batch_tokens` tokens, padding included, with a multiple of `devices` rows."""
        ...


WIDTHS = (128, 256, 512, 1024)
_SHUFFLE, _ORDER = 0, 1


def widths_for(longest: int) -> tuple[int, ...]:
    """Returns `WIDTHS`, extended by doubling until they hold a sequence of `longest` tokens."""
    widths: list[int] = list(WIDTHS)
    while widths[-1] < longest:
        widths.append(2 * widths[-1])
    return tuple(widths)


class BatchSchedule:
    """Yields the batches of all epochs; every sequence is in one batch of each epoch.

    Attributes:
      steps_per_epoch: the number of batches of an epoch.
      padding: the share of padding among an epoch's tokens.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        read: Callable[[int], tuple[np.ndarray, np.ndarray]],
        *,
        batch_tokens: int,
        seed: int,
        devices: int = 1,
        widths: Sequence[int] = WIDTHS,
    ):
        """Plans the batches.

        Args:
          lengths: the number of tokens of each sequence, `[n]`.
          read: returns the tokens of sequence `i`, and which of them are part of an answer.
          batch_tokens: the number of tokens of a batch, padding included; a width has `batch_tokens // width` rows.
          seed: the seed of the shuffles, at least 0.
          devices: the number of rows is a multiple of it, and at least that.
          widths: increasing widths. A sequence is padded to the smallest width that holds it.

        Raises:
          ValueError: there is no sequence, one is longer than the last width, or a number is out of range.
        """
        self._read, self._seed, self._widths = read, seed, tuple(widths)
        _check(lengths, batch_tokens, seed, devices, self._widths)
        self._rows = tuple(max(batch_tokens // width // devices, 1) * devices for width in self._widths)
        bucket = np.searchsorted(self._widths, lengths)
        self._members = tuple(np.flatnonzero(bucket == place) for place in range(len(self._widths)))
        # Each batch is the index of its width, and its number within that width.
        self._slots = [
            (place, number)
            for place, (members, rows) in enumerate(zip(self._members, self._rows, strict=True))
            for number in range(-(-len(members) // rows))
        ]
        self.steps_per_epoch = len(self._slots)
        room = sum(self._rows[place] * self._widths[place] for place, _ in self._slots)
        self.padding = 1 - float(np.sum(lengths)) / room
        self._epoch = functools.lru_cache(maxsize=2)(self._lay_out)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and width of all kinds of batches, for each of which a training step is compiled."""
        return [(self._rows[place], self._widths[place]) for place in sorted({place for place, _ in self._slots})]

    def indices(self, step: int) -> list[int]:
        """Returns the sequences of a batch, in the order of its rows, without empty rows.

        Raises:
          ValueError: the step is negative.
        """
        place, number = self._slot(step)
        shuffled, _ = self._epoch(step // self.steps_per_epoch)
        return shuffled[place][number * self._rows[place] : (number + 1) * self._rows[place]].tolist()

    def batch(self, step: int) -> Batch:
        """Returns the batch of a step, counted from 0 through all epochs.

        Raises:
          ValueError: the step is negative.
        """
        place, _ = self._slot(step)
        rows, width = self._rows[place], self._widths[place]
        tokens, answer = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.bool_)
        length = np.zeros(rows, np.int32)
        for row, index in enumerate(self.indices(step)):
            text, learn = self._read(index)
            length[row] = len(text)
            tokens[row, : len(text)], answer[row, : len(text)] = text, learn
        return Batch(jnp.asarray(tokens), jnp.asarray(length), jnp.asarray(answer))

    def _slot(self, step: int) -> tuple[int, int]:
        """Returns the index of a batch's width, and its number within that width."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        epoch, within = divmod(step, self.steps_per_epoch)
        return self._slots[self._epoch(epoch)[1][within]]

    def _lay_out(self, epoch: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Shuffles the members of each width, and the order of the batches."""
        rng = np.random.default_rng([self._seed, epoch, _SHUFFLE])
        shuffled = [rng.permutation(members) for members in self._members]
        return shuffled, np.random.default_rng([self._seed, epoch, _ORDER]).permutation(len(self._slots))


def _check(lengths: np.ndarray, batch_tokens: int, seed: int, devices: int, widths: tuple[int, ...]) -> None:
    """Raises `ValueError` unless the arguments of a `BatchSchedule` are valid."""
    if not widths or min(widths) < 1 or list(widths) != sorted(set(widths)):
        raise ValueError(f"widths must be ascending and at least 1, got {widths}")
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if len(lengths) == 0:
        raise ValueError("there is no sequence to make batches of")
    if (longest := int(np.max(lengths))) > widths[-1]:
        raise ValueError(f"a sequence has {longest} tokens, more than the last of widths {widths}; add a larger width")


_REMAKE = "run `jaxspec data` again to remake it"


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Holds conversations as token sequences, in memory.

    Attributes:
      vocab_size: the size of the target's vocabulary.
      tokenizer: the digest of the target's tokenizer.
      categories: the names of the kinds of questions.
      sequences: all shards of all folders, concatenated.
      shards: the sha256, number of sequences and number of tokens of each shard, in the order of `sequences`.
      chosen: the indices of the sequences that are in this set, `[n]`.
      whole_texts: whether to learn every token except each text's first, as if the target had written it.

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
    @typed()
    def open(
        cls, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, unfinished: bool = False
    ) -> Self:
        """Reads one or several folders, and checks every shard's hash.

        Args:
          paths: folders that `jaxspec data` wrote, for targets with one tokenizer.
          unfinished: whether to accept an unfinished set, with the shards that exist.

        Returns:
          The set of all sequences.

        Raises:
          ValueError: a folder has no finished set, or the tokenizers differ.
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
        """The number of tokens of each sequence, `[n]` int64."""
        return np.diff(self.sequences.offsets)[self.chosen]

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns a sequence's tokens, int32, and which to learn: those of answers, or all if `whole_texts`."""
        place = self.chosen[index]
        start, end = self.sequences.offsets[place : place + 2]
        learn = np.arange(end - start) > 0 if self.whole_texts else self.sequences.answer[start:end]
        return self.sequences.tokens[start:end].astype(np.int32), learn

    def place(self, index: int) -> tuple[str, int, int]:
        """Locates a sequence: the sha256 of its shard, its index in the shard, and the index of its first token."""
        sequences, tokens = (np.cumsum([0, *(shard[i] for shard in self.shards)]) for i in (1, 2))
        place = self.chosen[index]
        shard = int(np.searchsorted(sequences, place, side="right")) - 1
        start = self.sequences.offsets[place] - tokens[shard]
        return self.shards[shard][0], int(place - sequences[shard]), int(start)

    def sizes(self, shard: str) -> tuple[int, int]:
        """Returns the numbers of sequences and tokens of the shard with this sha256."""
        return next((sequences, tokens) for known, sequences, tokens in self.shards if known == shard)

    def texts(self, shard: str) -> list[np.ndarray]:
        """Returns the tokens of all sequences of a shard, int32, including those that are not in this set."""
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
        """Counts each token in the answers, `[v]` int64; with `whole_texts` and no answers, in all texts."""
        part = np.zeros(len(self.sequences.category), np.bool_)
        part[self.chosen] = True
        texts = np.repeat(part, np.diff(self.sequences.offsets))
        counted = self.sequences.answer & texts
        if self.whole_texts and not counted.any():
            counted = texts
        return np.bincount(self.sequences.tokens[counted], minlength=self.vocab_size).astype(np.int64)

    def split(self, validation: int) -> tuple["Dataset", "Dataset"]:
        """Sets aside at least `validation` sequences, chosen by their conversations' hashes.

        Conversations with the same user turns stay together, regardless of their answers and order; a set with more
        conversations sets aside nearly the same ones.

        Args:
          validation: the smallest number of sequences to set aside.

        Returns:
          The sequences to train on, and those to validate with.

        Raises:
          ValueError: no sequence would be left to train on.
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
        """Plans the batches to train with.

        Args:
          batch_tokens: the number of tokens of a batch, padding included.
          seed: the seed of the shuffles, at least 0.
          devices: the number of rows is a multiple of it.
          widths: increasing widths; a sequence is padded to the smallest width that holds it. `None` fits the longest
            sequence.

        Returns:
          The schedule of batches.

        Raises:
          ValueError: arguments are invalid.
        """
        widths = widths_for(int(self.lengths.max(initial=0))) if widths is None else widths
        return BatchSchedule(
            self.lengths, self.read, batch_tokens=batch_tokens, seed=seed, devices=devices, widths=widths
        )

    def _only(self, mask: np.ndarray) -> "Dataset":
        return dataclasses.replace(self, chosen=self.chosen[mask])


def manifest_of(folder: Path, *, unfinished: bool = False) -> dict[str, Any]:
    """Reads the manifest of a usable set.

    Raises:
      ValueError: there is no set, or it is not finished.
      FileFormatError: the manifest is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no training set; pass a folder that `jaxspec data` wrote")
    if not manifest["shards"] or not (manifest["complete"] or unfinished):
        raise ValueError(f"the training set in {folder} is not finished; run `jaxspec data` again to resume it")
    return manifest


def _shard(folder: Path, number: int, entry: dict[str, Any], category_names: list[int]) -> Sequences:
    """Reads a shard, and checks it against its entry in the manifest."""
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
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("tokens", "answer", "category", "conversation")
    }
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Sequences(offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), **joined)
