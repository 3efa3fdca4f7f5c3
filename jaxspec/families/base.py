"""Describes a model family: a row of the table of families."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jaxspec.families.grouped import Grouped
from jaxspec.nn.config import TransformerConfig

Shape = tuple[int, ...]


def _not_grouped() -> None:
    """Returns nothing, as of a tensor that is not quantized."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Holds a tensor's bytes where it is stored in blocks of a few bits.

    Attributes:
      name: the format's, as GGML calls it.
      rows: `[*out, bytes of a row]`, possibly a read-only view of the file.
    """

    name: str
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """Holds a tensor that is still in its file.

    Attributes:
      shape: its shape, known without reading it.
      read: reads it; any float dtype, possibly a read-only view of the file.
      blocks: returns it as it is stored, if that is in blocks.
      grouped: reads it as it is quantized; nothing where it is not, or its groups lie scattered.

    Example:
      >>> jaxspec.families.LazyTensor((2, 3), lambda: np.zeros((2, 3))).read().shape
      (2, 3)
    """

    shape: Shape
    read: Callable[[], np.ndarray]
    blocks: Callable[[], Blocks] | None = None
    grouped: Callable[[], Grouped | None] = _not_grouped

    def reorder(self, function: Callable[[np.ndarray], np.ndarray]) -> "LazyTensor":
        """Returns the tensor with its rows in another order, which `function` puts them in, whatever they hold."""
        blocks = self.blocks
        if blocks is None:
            return LazyTensor(self.shape, lambda: function(self.read()))

        def reordered() -> Blocks:
            stored = blocks()
            return Blocks(stored.name, function(stored.rows))

        return LazyTensor(self.shape, lambda: function(self.read()), reordered)


@dataclasses.dataclass(frozen=True)
class ParamMapping:
    """Makes one parameter from tensors of a checkpoint.

    Attributes:
      path: its place in the parameter tree.
      sources: the names of the tensors that it is made of, without the family's prefix, and the shape that each must
        have.
      build: returns the parameter, given those tensors.
      is_norm: whether it belongs to a normalization, which stays in float32.
      by_rows: whether `build` only moves rows of the tensors, whatever they hold.
      axis: the axis along which `build` puts several tensors side by side.

    Example:
      >>> gate_and_up = jaxspec.families.ParamMapping(
      ...     ("mlp", "gate_up"), (("gate.weight", (2, 3)), ("up.weight", (2, 3))), lambda *parts: np.concatenate(parts)
      ... )
      >>> sorted(gate_and_up.to_tensors({"mlp": {"gate_up": np.zeros((4, 3))}}))
      ['gate.weight', 'up.weight']
    """

    path: tuple[str, ...]
    sources: tuple[tuple[str, Shape], ...]
    build: Callable[..., np.ndarray]
    is_norm: bool = False
    axis: int = 0
    by_rows: bool = False

    def to_tensors(self, params: Any) -> dict[str, np.ndarray]:
        """Returns the tensors that the parameter was made of, by name.

        Undoes any `build` that only reshapes tensors and puts them side by side, as those of Llama do.

        Args:
          params: the parameter tree.
        """
        for key in self.path:
            params = params[key]
        parts = np.split(np.asarray(params), len(self.sources), axis=self.axis)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.sources, parts, strict=True)}


def _no_settings(
    settings: Mapping[str, Any], config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, Any]:
    return {}


def _unchanged_tensor(name: str, tensor: LazyTensor, config: Mapping[str, Any]) -> LazyTensor:
    return tensor


def _unchanged_array(name: str, x: np.ndarray, config: TransformerConfig) -> np.ndarray:
    return x


@dataclasses.dataclass(frozen=True)
class GGUFLayout:
    """Describes a family's layout in GGUF files, as llama.cpp's converter writes them.

    Attributes:
      architecture: the value of `general.architecture`.
      settings: keys of the metadata, without the architecture in front, to keys of `config.json`.
      tensors: names of tensors, without block and suffix, to those of Hugging Face.
      blocks: the word in front of a block's number in Hugging Face's names.
      read_settings: returns the rest of `config.json`, given the metadata's settings, what was read of `config.json`
        already, and the tensors.
      restore: undoes what the converter did to a tensor's values, given its GGUF name and `config.json`.
      store: does the same to an array, given its Hugging Face name; only of families that are written.
      merges_by_id: whether a SentencePiece vocabulary is merged in the order of its ids, not of its scores, and
        writes runs of spaces as spaces.

    Example:
      >>> layout = jaxspec.families.find_family({"model_type": "llama"}).gguf
      >>> isinstance(layout, jaxspec.families.GGUFLayout), layout.architecture
      (True, 'llama')
    """

    architecture: str
    settings: Mapping[str, str]
    tensors: Mapping[str, str]
    blocks: str = "layers"
    read_settings: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, LazyTensor]], dict[str, Any]] = (
        _no_settings
    )
    restore: Callable[[str, LazyTensor, Mapping[str, Any]], LazyTensor] = _unchanged_tensor
    store: Callable[[str, np.ndarray, TransformerConfig], np.ndarray] = _unchanged_array
    merges_by_id: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes a family of decoders: how its checkpoints describe a model and name its tensors.

    Attributes:
      model_type: its `model_type` in a Hugging Face `config.json`.
      read_config: returns the decoder's hyperparameters, given the contents of `config.json`; raises `ValueError` for
        options that are not supported.
      map_params: returns the mappings of every parameter of a decoder with these hyperparameters.
      prefix: what stands in front of most tensors' names.
      constants: a regular expression of tensors, without the prefix, that older versions of transformers stored
        although they are computed.
      write_config: returns the contents of `config.json`, given hyperparameters; raises `ValueError` if it cannot. It
        may lose some, so the caller reads them back and compares. `None`: the family is not written.
      gguf: its layout in GGUF files. `None`: it has none of its own.
      inputs_first: whether kernels are stored `[in, out]`, of which no quantized layout is read.

    Example:
      >>> family = jaxspec.families.find_family({"model_type": "qwen3"})
      >>> isinstance(family, jaxspec.families.Family), family.full_name("norm.weight")
      (True, 'model.norm.weight')
    """

    model_type: str
    read_config: Callable[[Mapping[str, Any]], TransformerConfig]
    map_params: Callable[[TransformerConfig], Iterable[ParamMapping]]
    prefix: str = "model."
    constants: str = r"rotary_emb\.inv_freq$"
    write_config: Callable[[TransformerConfig], dict[str, Any]] | None = None
    gguf: GGUFLayout | None = None
    inputs_first: bool = False

    def full_name(self, name: str) -> str:
        """Returns a tensor's name with the prefix, which the output head's has not."""
        return name if name == "lm_head.weight" else self.prefix + name
