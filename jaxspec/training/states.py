"""The target's states of every sequence, kept on disk: computed once, read by all epochs and all drafters.

    folder/<shard>-<target>/layer-27.bfloat16    [tokens, width], sparse until it is filled
                            layer-27.there       [sequences], 1 for those that are

A sequence's states are computed by itself, so that they do not depend on what else stands in a batch: a run that
died and went on reads what it would have computed. A sequence counts as there once all of it is written; that holds
when a process dies, but not when the machine does: remove the folder then.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec.model import LanguageModel
from jaxspec.training.dataset import Dataset
from jaxspec.training.manifest import weights_digest
from jaxspec.training.recipe import Features
from jaxspec.training.schedule import WIDTHS

# Sequences of a training set's shard share two files for each layer.
_NAME = 16


@dataclasses.dataclass(frozen=True, eq=False)
class KeptStates:
    """States of a training set's sequences, in bfloat16; `2 * width` bytes a token and layer.

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
        """The states of a batch of `data.batches`, computed first where they are not there yet.

        Args:
          capture: the hidden states that a recipe reads.
          indices: the sequences, row by row; rows beyond them are empty.
          shape: rows and width of the batch.

        Raises:
          OSError: the folder cannot be written.
        """
        layers = tuple(dict.fromkeys((*capture, self.target.module.config.num_layers)))
        found = np.zeros((len(layers), *shape, self.target.module.config.width), np.uint16)
        for row, index in enumerate(indices):
            tokens, _ = self.data.read(index)
            found[:, row, : len(tokens)] = self._sequence(layers, index, tokens)
        read = {layer: jnp.asarray(x.view(jnp.bfloat16)) for layer, x in zip(layers, found, strict=True)}
        read = {layer: x.astype(self.target.dtype) for layer, x in read.items()}
        return Features(tuple(read[layer] for layer in capture), read[layers[-1]])

    def _sequence(self, layers: tuple[int, ...], index: int, tokens: np.ndarray) -> np.ndarray:
        """`[layers, t, width]`, as the bits of bfloat16."""
        shard, number, start = self.data.place(index)
        files = [self._layer(shard, layer) for layer in layers]
        missing = [i for i, file in enumerate(files) if not file.there[number]]
        end = start + len(tokens)
        if missing:
            computed = _states(self.target, _padded(tokens), tuple(layers[i] for i in missing))
            for i, states in zip(missing, computed, strict=True):
                files[i].states[start:end] = np.asarray(states[0, : len(tokens)]).view(np.uint16)
                files[i].there[number] = 1
        return np.stack([file.states[start:end] for file in files])

    @functools.cached_property
    def _target_digest(self) -> str:
        return weights_digest(self.target)

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
                _opened(folder / f"layer-{layer:02}.there", (sequences,), np.uint8),
            )
        return self._opened[shard, layer]


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    states: np.memmap
    there: np.memmap


def _opened(path: Path, shape: tuple[int, ...], dtype: Any) -> np.memmap:
    """A file of so many numbers, zeros if it is new; raises `ValueError` if it is another's."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # Two processes may come to this at once: to lengthen a file to the same size twice does no harm.
    with open(path, "ab") as file:
        if file.tell() == 0:
            os.truncate(path, size)
    if (known := path.stat().st_size) != size:
        raise ValueError(f"{path} has {known} bytes, expected {size}; remove it, or keep states in another folder")
    return np.memmap(path, dtype, "r+", shape=shape)


def _padded(tokens: np.ndarray) -> Int[Array, "1 t"]:
    width = next((width for width in WIDTHS if width >= len(tokens)), len(tokens))
    return jnp.asarray(np.pad(tokens, (0, width - len(tokens)))[None])


@functools.partial(jax.jit, static_argnames="capture")
def _states(target: LanguageModel, tokens: Array, capture: tuple[int, ...]) -> tuple[Float[Array, "1 t d"], ...]:
    hidden = target(tokens, target.init_cache(1, 0), capture=capture).hidden
    return tuple(x.astype(jnp.bfloat16) for x in hidden)
