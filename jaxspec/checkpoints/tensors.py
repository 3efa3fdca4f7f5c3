"""A checkpoint as every reader hands it on: Hugging Face's configuration and tensors, not yet read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxspec.checkpoints.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """A tensor that is still in its file.

    Attributes:
      shape: its shape, known without reading it.
      read: reads it; any float dtype, possibly a read-only view of the file.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file or folder holds.

    Attributes:
      source: where it was read from, for error messages.
      config: the contents of a Hugging Face `config.json`, `model_type` included.
      tensors: the tensors by their Hugging Face names.
      tokenizer: the tokenizer stored with the weights, if there is one.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: Tokenizer | None
