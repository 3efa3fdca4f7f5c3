"""Describes a model family: a row of the table of families."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jaxspec.core import validate
from jaxspec.core.typed import check_fields
from jaxspec.families.settings import SETTINGS, check_settings
from jaxspec.nn.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Holds the weight `(values - zero) * scale`, whose groups are equal runs of consecutive inputs.

    Attributes:
      values: `[*out, in]`, int8 or a one-byte float.
      scale: `[*out, in // group]`, a float of 16 or 32 bits.
      zero: `[*out, in // group]`, int8; `None` is 0.
      bits: the bits of each value: 4-bit values are between -8 and 7.

    Raises:
      TypeError, ValueError: a field has another type, or these shapes do not fit together.

    Example:
      >>> values, scale = np.array([[1, 2, 3, -4]], np.int8), np.array([[0.5, 2.0]], np.float32)
      >>> jaxspec.families.Grouped(values, scale, None, 4).dequantize().tolist()
      [[0.5, 1.0, 6.0, -8.0]]
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int

    def __post_init__(self) -> None:
        check_fields(self, "values", "scale", "zero", bits=(1, 8))
        shape, groups = self.scale.shape, self.scale.shape[-1] if self.scale.ndim else 0
        is_like = self.zero is None or self.zero.shape == shape
        if not is_like or not groups or self.values.shape[:-1] != shape[:-1] or self.values.shape[-1] % groups:
            raise ValueError(
                f"scale of Grouped must be [*out, in // group] for values [*out, in], and zero like it, got "
                f"{shape} for {self.values.shape} and zero {None if self.zero is None else self.zero.shape}"
            )

    def dequantize(self) -> np.ndarray:
        """Returns the weight in float32, each number rounded once."""
        groups = self.values.astype(np.float32).reshape(*self.scale.shape, -1)
        if self.zero is not None:
            groups -= self.zero[..., None]
        groups *= self.scale.astype(np.float32)[..., None]
        return groups.reshape(self.values.shape)


def build_grouped(build: Callable[..., np.ndarray], parts: list[Grouped]) -> Grouped | None:
    """Combines several weights, like `ParamMapping.build` for arrays.

    Args:
      build: moves outputs, without changing the order of their inputs.
      parts: the weights to combine.

    Returns:
      The weight; `None` if the parts differ in kind or in the number of groups, so that only floats can be combined.
    """
    if len({(part.values.dtype, part.scale.shape[-1], part.bits) for part in parts}) > 1:
        return None
    zero = None
    if any(part.zero is not None for part in parts):
        zero = build(*(np.zeros(part.scale.shape, np.int8) if part.zero is None else part.zero for part in parts))
    scale = build(*(part.scale for part in parts))
    return Grouped(build(*(part.values for part in parts)), scale, zero, parts[0].bits)


Shape = tuple[int, ...]


def _not_grouped() -> None:
    """Returns `None`: the tensor is not quantized."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Holds the bytes of a tensor that is stored in blocks of a few bits.

    Attributes:
      name: GGML's name of the format.
      rows: `[*out, bytes of a row]`, possibly a read-only view of the file.
    """

    name: str
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """Holds a tensor that is still in its file.

    Attributes:
      shape: its shape, known without reading it.
      read: reads it, in any float dtype, possibly as a read-only view of the file.
      blocks: returns its stored blocks, if it has any.
      grouped: reads its quantized form; `None` if it is not quantized, or its groups are not contiguous.

    Example:
      >>> jaxspec.families.LazyTensor((2, 3), lambda: np.zeros((2, 3))).read().shape
      (2, 3)
    """

    shape: Shape
    read: Callable[[], np.ndarray]
    blocks: Callable[[], Blocks] | None = None
    grouped: Callable[[], Grouped | None] = _not_grouped

    def __post_init__(self) -> None:
        check_fields(self)

    def reorder(self, function: Callable[[np.ndarray], np.ndarray]) -> "LazyTensor":
        """Returns the tensor with its rows reordered by `function`, for rows of any content."""
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
      path: its path in the parameter tree.
      sources: the names of its tensors, without the family's prefix, and the required shape of each.
      build: returns the parameter, given those tensors.
      is_norm: whether it belongs to a normalization, which stays in float32.
      by_rows: whether `build` only moves rows of the tensors.
      joins: whether tensors of different formats can be combined by concatenation along `axis`.
      axis: the axis along which `build` concatenates several tensors.

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
    joins: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def to_tensors(self, params: Any) -> dict[str, np.ndarray]:
        """Converts the parameter back to its tensors, by name.

        Undoes any `build` that only reshapes and concatenates tensors, as for Llama.

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


def _as_stored(tensors: Mapping[str, LazyTensor]) -> Mapping[str, LazyTensor]:
    return tensors


@dataclasses.dataclass(frozen=True)
class GGUFLayout:
    """Describes a family's layout in GGUF files, as written by llama.cpp's converter.

    Attributes:
      architecture: the value of `general.architecture`.
      settings: maps keys of the metadata, without the architecture prefix, to keys of `config.json`.
      tensors: maps tensor names, without block and suffix, to those of Hugging Face.
      blocks: the word before a block's number in Hugging Face's names.
      read_settings: returns the rest of `config.json`, given the metadata's settings, the keys read so far, and the
        tensors.
      restore: undoes the converter's changes to a tensor's values, given its GGUF name and `config.json`.
      store: applies the converter's changes to an array, given its Hugging Face name; only for families that are
        written.
      has_experts: whether it is the layout of files with experts, where an architecture has two.
      merges_by_id: whether a SentencePiece vocabulary is merged in the order of its ids instead of its scores, and
        keeps runs of spaces.

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
    has_experts: bool = False
    merges_by_id: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes a family of decoders: how its checkpoints describe a model and name its tensors.

    Attributes:
      model_type: its `model_type` in a Hugging Face `config.json`.
      build_config: returns the decoder's hyperparameters, given all settings in `defaults`; raises `ValueError` for
        options that are not supported.
      map_params: returns the mappings of every parameter of a decoder with these hyperparameters.
      defaults: the settings of `config.json` that are read, and their defaults: those of the family's configuration
        class in transformers. `None` means that the default follows from other settings.
      nulls: the settings whose null is not the default. The null of a size is an error.
      synonyms: maps names that other families have for a setting to its own. They count more, as in transformers.
      prefix: the prefix of most tensor names.
      constants: a regular expression for tensors, without the prefix, that older versions of transformers stored
        although they are computed.
      write_config: returns the contents of `config.json`, given hyperparameters; raises `ValueError` if it cannot. It
        may lose some, so the caller reads them back and compares. `None`: the family is not written.
      gguf: its layout in GGUF files, or `None`.
      inputs_first: whether kernels are stored as `[in, out]`, for which no quantized layout is supported.
      respell: returns a checkpoint's tensors under the names of `map_params`, if there are other forms of them.

    Example:
      >>> family = jaxspec.families.find_family({"model_type": "qwen3"})
      >>> isinstance(family, jaxspec.families.Family), family.full_name("norm.weight")
      (True, 'model.norm.weight')
    """

    model_type: str
    build_config: Callable[[Mapping[str, Any]], TransformerConfig]
    map_params: Callable[[TransformerConfig], Iterable[ParamMapping]]
    defaults: Mapping[str, Any]
    nulls: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = "model."
    constants: str = r"rotary_emb\w*\.(\w*inv_freq|cos_cached|sin_cached)$"
    write_config: Callable[[TransformerConfig], dict[str, Any]] | None = None
    gguf: GGUFLayout | None = None
    inputs_first: bool = False
    respell: Callable[[Mapping[str, LazyTensor]], Mapping[str, LazyTensor]] = _as_stored

    def __post_init__(self) -> None:
        check_fields(self)

    def read_config(self, config: Mapping[str, Any]) -> TransformerConfig:
        """Returns the decoder's hyperparameters.

        Args:
          config: the contents of `config.json`; settings that are missing or null have the family's defaults.

        Raises:
          TypeError: `config` is no dictionary.
          ValueError: a setting has another type or is out of range, or an option is not supported; it is a
            `SettingError`.
        """
        validate.instance("config", config, Mapping, 'pass {"model_type": "llama"}, say')
        named = {*self.defaults, *self.synonyms}
        check_settings(config, {key: setting for key, setting in SETTINGS.items() if key in named})
        values = {key: x for key, x in config.items() if x is not None or key in self.nulls}
        values |= {own: values[name] for name, own in self.synonyms.items() if name in values}
        return self.build_config({"model_type": self.model_type, **self.defaults, **values})

    def full_name(self, name: str) -> str:
        """Returns a tensor's name with the prefix, which the output head lacks."""
        return name if name == "lm_head.weight" else self.prefix + name
