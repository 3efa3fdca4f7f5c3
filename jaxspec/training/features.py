"""Keeps the target's states of every sequence on disk: computed once, read by all epochs and all drafters.

    folder/<shard>-<target>/layer-27.bfloat16    [tokens, width], allocated before it is filled
                            layer-27.crc32       [sequences], of each one's bytes; 0 for those that are not there

A sequence's states are computed together with the same others of its shard, whatever batch asks for them: a run that
died and went on reads what it would have computed. A sequence counts as there once all of it is written and for as long
as its bytes are those; states that a machine lost when it died, or a disk since, are computed again.
"""

import dataclasses
import errno
import functools
import os
import shutil
import sys
import zlib
from pathlib import Path
from typing import BinaryIO

import filelock
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxspec.core.files import FileFormatError
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import widths_for
from jaxspec.training.dataset import Dataset
from jaxspec.training.files import weights_digest
from jaxspec.training.recipe import Features

# Sequences of a training set's shard share two files for each layer.
_NAME = 16
# Tokens that the target is given at once, padding included.
_AT_ONCE = 2048
# Bytes of zeros that are written at once, where a filesystem cannot set them aside.
_ZEROS = 1 << 20
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclasses.dataclass(frozen=True, eq=False)
class StoredStates:
    """Holds states of a training set's sequences, in bfloat16; `2 * width` bytes a token and layer.

    Several processes may fill one folder: they write the same.

    Attributes:
      folder: where they are, of any number of sets and targets.
      target: whose states they are; on one device.
      data: the sequences.
    """

    folder: Path
    target: LanguageModel
    data: Dataset

    def features(self, capture: tuple[int, ...], indices: list[int], shape: tuple[int, int]) -> Features:
        """Returns the states of a batch of `data.batches`, computed first where they are not there yet.

        Args:
          capture: the hidden states that a recipe reads.
          indices: the sequences, row by row; rows beyond them are empty.
          shape: rows and width of the batch.

        Raises:
          OSError: the folder cannot be written, or has no room; then nothing is written.
          FileFormatError: a file there has another size.
        """
        layers = tuple(dict.fromkeys((*capture, self.target.module.config.num_layers)))
        found = np.zeros((len(layers), *shape, self.target.module.config.width), np.uint16)
        for row, index in enumerate(indices):
            states = self._sequence(layers, index)
            found[:, row, : states.shape[1]] = states
        read = {layer: jnp.asarray(x.view(jnp.bfloat16)) for layer, x in zip(layers, found, strict=True)}
        read = {layer: x.astype(self.target.dtype) for layer, x in read.items()}
        return Features(tuple(read[layer] for layer in capture), read[layers[-1]])

    def _sequence(self, layers: tuple[int, ...], index: int) -> np.ndarray:
        """Reads a sequence's states, `[layers, t, width]`, as the bits of bfloat16."""
        shard, number, _ = self.data.place(index)
        start, end = map(int, self._shard(shard).starts[number : number + 2])
        read = lambda layer: self._layer(shard, layer).read(number, start, end)  # noqa: E731
        if missing := tuple(layer for layer in layers if read(layer) is None):
            self._compute(shard, number, missing)
        return np.stack([self._layer(shard, layer).states[start:end] for layer in layers])

    def _compute(self, shard: str, number: int, layers: tuple[int, ...]) -> None:
        """Computes the states of a sequence and of those that are computed with it."""
        known = self._shard(shard)
        width, members = known.together(number)
        tokens = np.zeros((max(_AT_ONCE // width, 1), width), np.int32)
        for row, member in enumerate(members):
            tokens[row, : len(known.texts[member])] = known.texts[member]
        for layer, states in zip(layers, _states(self.target, jnp.asarray(tokens), layers), strict=True):
            file, bits = self._layer(shard, layer), np.asarray(states).view(np.uint16)
            for row, member in enumerate(members):
                file.write(int(member), int(known.starts[member]), bits[row, : len(known.texts[member])])

    @functools.cached_property
    def _target_digest(self) -> str:
        return weights_digest(self.target)

    @functools.cached_property
    def _shards(self) -> dict[str, "_Shard"]:
        return {}

    def _shard(self, shard: str) -> "_Shard":
        if shard not in self._shards:
            self._shards[shard] = _Shard(self.data.texts(shard))
        return self._shards[shard]

    @functools.cached_property
    def _opened(self) -> dict[tuple[str, int], "_Layer"]:
        return {}

    def _layer(self, shard: str, layer: int) -> "_Layer":
        if (shard, layer) not in self._opened:
            folder = self.folder / f"{shard[:_NAME]}-{self._target_digest[:_NAME]}"
            folder.mkdir(parents=True, exist_ok=True)
            sequences, tokens = self.data.sizes(shard)
            self._opened[shard, layer] = _Layer(
                _opened(folder / f"layer-{layer:02}.bfloat16", (tokens, self.target.module.config.width), np.uint16),
                _opened(folder / f"layer-{layer:02}.crc32", (sequences,), np.uint32),
            )
        return self._opened[shard, layer]


@dataclasses.dataclass(frozen=True, eq=False)
class _Shard:
    """Holds the sequences of a shard, of which neighbors of one width are computed together."""

    texts: list[np.ndarray]

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The offset at which each sequence begins, and the one at which the last one ends."""
        return np.cumsum([0, *map(len, self.texts)])

    @functools.cached_property
    def _widths(self) -> np.ndarray:
        lengths = [len(text) for text in self.texts]
        widths = np.array(widths_for(max(lengths, default=0)))
        return widths[np.searchsorted(widths, lengths)]

    def together(self, number: int) -> tuple[int, np.ndarray]:
        """Returns the width and the numbers of the sequences that are computed with this one."""
        width = int(self._widths[number])
        same = np.flatnonzero(self._widths == width)
        rows = max(_AT_ONCE // width, 1)
        first = int(np.searchsorted(same, number)) // rows * rows
        return width, same[first : first + rows]


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """Holds the files of one layer."""

    states: np.memmap
    checksums: np.memmap

    def read(self, number: int, start: int, end: int) -> np.ndarray | None:
        """Returns a sequence's states; `None` if they are not there, or are not what was written."""
        if not (expected := self.checksums[number]):
            return None
        states = self.states[start:end]
        if expected == _checksum(states):
            return states
        print(f"jaxspec: {self.states.filename}: sequence {number} is damaged, computing it again", file=sys.stderr)
        return None

    def write(self, number: int, start: int, states: np.ndarray) -> None:
        """Writes a sequence's states, and then that they are there."""
        self.states[start : start + len(states)] = states
        self.checksums[number] = _checksum(states)


def _checksum(states: np.ndarray) -> int:
    """Returns the CRC-32 of the bytes; never 0, which says that there are none."""
    return zlib.crc32(states.tobytes()) or 1


def _opened(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap:
    """Maps a file of so many numbers, zeros if it is new; raises `FileFormatError` if its size is another."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not path.exists():
        with filelock.FileLock(path.parent / ".lock"):
            if not path.exists():  # another process has made it
                _allocate(path, size)
    known = path.stat().st_size if path.is_file() else "no file"
    if known != size:
        advice = "remove it, or keep states in another folder"
        raise FileFormatError(path, "", f"expected {size} bytes, got {known}", advice)
    return np.memmap(path, dtype, "r+", shape=shape)


def _allocate(path: Path, size: int) -> None:
    """Makes a file of zeros, all of it on the disk: where a mapped page has no room there, the process is killed."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            _set_aside(file, size)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        told = f"{error.strerror}: the target's states need {size} bytes, {free} are free; free some, keep them in "
        raise OSError(error.errno, told + "another folder, or leave out states", str(path)) from error


def _set_aside(file: BinaryIO, size: int) -> None:
    """Gives an empty file its size in zeros."""
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
    for start in range(0, size, _ZEROS):
        file.write(bytes(min(_ZEROS, size - start)))


@functools.partial(jax.jit, static_argnames="capture")
def _states(target: LanguageModel, tokens: Array, capture: tuple[int, ...]) -> tuple[Float[Array, "b t d"], ...]:
    """Runs the target; returns its states in bfloat16."""
    hidden = target(tokens, target.init_cache(tokens.shape[0], 0), capture=capture).hidden
    return tuple(x.astype(jnp.bfloat16) for x in hidden)
