"""Stores the target's states of every sequence on disk: computed once, read in all epochs and by all drafters.

    folder/<shard>-<target>/layer-27.bfloat16    [tokens, width], allocated before it is filled
                            layer-27.crc32       [sequences], of each one's bytes and place; 0 if absent

A sequence's states are always computed together with the same other sequences of its shard, regardless of the batch
that needs them. So a run that died and resumed reads what it would have computed. A sequence counts as present while
its bytes match their checksum; states that were lost or damaged are computed again.
"""

import dataclasses
import errno
import functools
import logging
import os
import shutil
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

from jaxspec.io.files import FileFormatError
from jaxspec.nn.digest import model_digest
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.dataset import Dataset, widths_for
from jaxspec.training.recipe import Features

_logger = logging.getLogger(__name__)

# The length of digests in names of folders, which hold two files for each layer of a shard.
_NAME = 16
# The number of tokens in one pass of the target, padding included.
_AT_ONCE = 2048
# The number of zero bytes to write at once if the filesystem cannot preallocate.
_ZEROS = 1 << 20
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclasses.dataclass(frozen=True, eq=False)
class StoredStates:
    """Stores states of a training set's sequences in bfloat16, which takes `2 * width` bytes a token and layer.

    Several processes may fill one folder: they write equal files.

    Attributes:
      folder: the folder of the states, which may hold those of any number of sets and targets.
      target: the model whose states they are; on one device.
      data: the sequences.
    """

    folder: Path
    target: LanguageModel
    data: Dataset
    _shards: dict[str, "_Shard"] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _opened: dict[tuple[str, int], "_Layer"] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def features(self, capture: tuple[int, ...], indices: list[int], shape: tuple[int, int]) -> Features:
        """Returns the states of a batch of `data.batches`, and computes those that are missing.

        Args:
          capture: the hidden states that a recipe reads.
          indices: the sequences, row by row; further rows are empty.
          shape: the rows and width of the batch.

        Returns:
          The states in the target's dtype.

        Raises:
          OSError: the folder cannot be written, or has no room; then nothing is written.
          FileFormatError: a file has the wrong size.
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
        """Reads a sequence's states as the bits of bfloat16, `[layers, t, width]`."""
        shard, number, _ = self.data.place(index)
        start, end = map(int, self._shard(shard).starts[number : number + 2])
        read = lambda layer: self._layer(shard, layer).read(number, start, end)  # noqa: E731
        if missing := tuple(layer for layer in layers if read(layer) is None):
            self._compute(shard, number, missing)
        return np.stack([self._layer(shard, layer).states[start:end] for layer in layers])

    def _compute(self, shard: str, number: int, layers: tuple[int, ...]) -> None:
        """Computes the states of a sequence and of those in its group."""
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
        return model_digest(self.target)

    def _shard(self, shard: str) -> "_Shard":
        if shard not in self._shards:
            self._shards[shard] = _Shard(self.data.texts(shard))
        return self._shards[shard]

    def _layer(self, shard: str, layer: int) -> "_Layer":
        if (shard, layer) not in self._opened:
            folder = self.folder / f"{shard[:_NAME]}-{self._target_digest[:_NAME]}"
            folder.mkdir(parents=True, exist_ok=True)
            sequences, tokens = self.data.sizes(shard)
            self._opened[shard, layer] = _Layer(
                f"{folder.name}/{layer}",
                _opened(folder / f"layer-{layer:02}.bfloat16", (tokens, self.target.module.config.width), np.uint16),
                _opened(folder / f"layer-{layer:02}.crc32", (sequences,), np.uint32),
            )
        return self._opened[shard, layer]


@dataclasses.dataclass(frozen=True, eq=False)
class _Shard:
    """Holds the sequences of a shard, of which neighbors with equal widths are computed together."""

    texts: list[np.ndarray]

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The offset of each sequence, followed by the end of the last one."""
        return np.cumsum([0, *map(len, self.texts)])

    @functools.cached_property
    def _widths(self) -> np.ndarray:
        lengths = [len(text) for text in self.texts]
        widths = np.array(widths_for(max(lengths, default=0)))
        return widths[np.searchsorted(widths, lengths)]

    def together(self, number: int) -> tuple[int, np.ndarray]:
        """Returns the width and the indices of the sequences in the group of this one."""
        width = int(self._widths[number])
        same = np.flatnonzero(self._widths == width)
        rows = max(_AT_ONCE // width, 1)
        first = int(np.searchsorted(same, number)) // rows * rows
        return width, same[first : first + rows]


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """Holds the memory-mapped files of one layer; `place` names the shard, the target and the layer."""

    place: str
    states: np.memmap
    checksums: np.memmap

    def read(self, number: int, start: int, end: int) -> np.ndarray | None:
        """Returns a sequence's states; `None` if they are absent or damaged."""
        if not (expected := self.checksums[number]):
            return None
        states = self.states[start:end]
        if expected == self._checksum(number, states):
            return states
        _logger.warning("%s: sequence %d is damaged, computing it again", self.states.filename, number)
        return None

    def write(self, number: int, start: int, states: np.ndarray) -> None:
        """Writes a sequence's states, and then their checksum, which marks them as present."""
        self.states[start : start + len(states)] = states
        self.checksums[number] = self._checksum(number, states)

    def _checksum(self, number: int, states: np.ndarray) -> int:
        """Returns the CRC-32 of a sequence's place and bytes, but never 0, which marks absent states."""
        return zlib.crc32(states.tobytes(), zlib.crc32(f"{self.place}/{number}".encode())) or 1


def _opened(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap:
    """Maps a file of this shape, filled with zeros if it is new; raises `FileFormatError` if its size differs."""
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
    """Creates a file of zeros with all blocks allocated: a mapped page without room would kill the process."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            _set_aside(file, size)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        message = f"{error.strerror}: the target's states need {size} bytes, {free} are free; free some, keep them in "
        raise OSError(error.errno, message + "another folder, or leave out states", str(path)) from error


def _set_aside(file: BinaryIO, size: int) -> None:
    """Extends an empty file to its size with zeros."""
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
    """Runs the target and returns its states in bfloat16."""
    hidden = target(tokens, target.init_cache(tokens.shape[0], 0), capture=capture).hidden
    return tuple(x.astype(jnp.bfloat16) for x in hidden)
