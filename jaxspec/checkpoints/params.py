"""Builds a `LanguageModel` from a checkpoint: one tensor at a time, so that no second copy is held."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.checkpoints.fit import check_fit, check_quantization, check_tied, mismatch, of_model, without_idle_biases
from jaxspec.checkpoints.quantized.table import is_read
from jaxspec.checkpoints.stored import read_finite
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.files import FileFormatError
from jaxspec.families.base import LazyTensor, ParamMapping
from jaxspec.families.settings import settings_of
from jaxspec.families.table import find_family, read_config
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer
from jaxspec.nn.weight import PRODUCTS
from jaxspec.ops.packed import PackedWeight
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement

# Given a mapping, the tensors by name, their source and the dtype of rows that are read from the parameter.
Hold = Callable[[ParamMapping, Mapping[str, LazyTensor], str, DTypeLike], PackedWeight | None]
_SAME_MODEL = "check that configuration and weights belong to the same model"


def _hold_nothing(*_: Any) -> None:
    """Holds no parameter as it is stored."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Holds a checkpoint as every reader hands it on: a Hugging Face configuration, and tensors that are not yet read.

    Attributes:
      source: where it was read from, for error messages.
      config: the contents of a Hugging Face `config.json`, `model_type` included.
      tensors: the tensors by their Hugging Face names.
      tokenizer: the tokenizer stored with the weights, if there is one.
      config_file: the file that `config` was read from; empty if it is the source.
      name_of: returns what that file calls a setting of `config`.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: Tokenizer | None
    config_file: str = ""
    name_of: Callable[[str], str] = str


def assemble(
    checkpoint: Checkpoint, dtype: jnp.dtype, placement: Placement | None = None, *, hold: Hold = _hold_nothing
) -> LanguageModel:
    """Builds the model that a checkpoint describes.

    Args:
      checkpoint: configuration, unread tensors, tokenizer.
      dtype: of weights and activations; normalization scales stay float32.
      placement: where parameters go, each straight into its shards; `None` is the default device.
      hold: returns a parameter as its tensors are stored, or `None` for an array of their values.

    Raises:
      ValueError: the architecture is not supported; a tensor is missing, left over, of the wrong
        shape, unreadable or not finite.
    """
    file = checkpoint.config_file or checkpoint.source
    with settings_of(file, checkpoint.name_of):
        config, family = read_config(checkpoint.config), find_family(checkpoint.config)
        tensors = of_model(family, config, checkpoint.config, checkpoint.tensors)
        mappings = list(family.map_params(config))
        if is_read(checkpoint.config):
            tensors = without_idle_biases(tensors, mappings)
        problem = mismatch(mappings, tensors)
        check_quantization(family, checkpoint.config, problem)
    with settings_of(file, checkpoint.name_of, _SAME_MODEL):
        if problem:
            check_fit(checkpoint.config, problem, checkpoint.tensors)
        elif config.tied_head:
            check_tied(checkpoint.tensors.get("lm_head.weight"), tensors[_source_of(mappings, "embedding")])
    params = build_params(mappings, tensors, checkpoint.source, dtype, placement, hold=hold)
    model = LanguageModel(Transformer(config, dtype), params, _tokenizer(checkpoint, config.vocab_size))
    return model if placement is None else placed(model, placement)


def _tokenizer(checkpoint: Checkpoint, vocab_size: int) -> Tokenizer | None:
    """Returns the tokenizer without ends of text that the model cannot write; says which those are, on stderr."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None or not (foreign := [index for index in tokenizer.eos_token_ids if index >= vocab_size]):
        return tokenizer
    problem = f"ignoring {', '.join(map(str, foreign))}, which are no tokens of a model with vocab_size {vocab_size}"
    print(f"jaxspec: {checkpoint.config_file or checkpoint.source}: eos_token_id: {problem}", file=sys.stderr)
    return tokenizer.ending_with(set(tokenizer.eos_token_ids).difference(foreign))


def build_params(
    mappings: list[ParamMapping],
    tensors: Mapping[str, LazyTensor],
    source: str,
    dtype: jnp.dtype,
    placement: Placement | None = None,
    *,
    hold: Hold = _hold_nothing,
) -> dict[str, Any]:
    """Builds the tree of parameters from a checkpoint's tensors.

    Args:
      mappings: of every parameter; together they use every tensor.
      tensors: the tensors by name, without the family's prefix.
      source: where they were read from, for error messages.
      dtype: of all parameters but those of normalizations, which are float32.
      placement: as of `assemble`.
      hold: as of `assemble`.

    Raises:
      ValueError: a tensor is missing, left over, of the wrong shape, unreadable or not finite.
    """
    if problem := mismatch(mappings, tensors):
        raise FileFormatError(
            source, "", f"the tensors do not match the configuration (Hugging Face names). {problem}", _SAME_MODEL
        )
    params: dict[str, Any] = {}
    for mapping in mappings:
        node = params
        for key in mapping.path[:-1]:
            node = node.setdefault(key, {})
        held = hold(mapping, tensors, source, dtype) if mapping.path[-1] in PRODUCTS else None
        if held is None:
            values = mapping.build(*(read_finite(tensors, name, source) for name, _ in mapping.sources))
            held = _put(mapping, np.asarray(values), jnp.float32 if mapping.is_norm else dtype, placement)
        node[mapping.path[-1]] = held
    return params


def _source_of(mappings: list[ParamMapping], name: str) -> str:
    """Returns the tensor that a parameter at the top of the tree is made of."""
    return next(mapping.sources[0][0] for mapping in mappings if mapping.path == (name,))


def _put(mapping: ParamMapping, values: np.ndarray, dtype: DTypeLike, placement: Placement | None) -> jax.Array:
    if placement is None:
        return jnp.array(values, dtype=dtype)
    sharding = placement.sharding(values.shape, parameter_axes(mapping.path, values.ndim))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index].astype(dtype))


def abstract_params(module: Transformer) -> Any:
    """Returns the `params` collection of a module as `jax.ShapeDtypeStruct`s."""
    cache = jax.eval_shape(lambda: LanguageModel(module, {}).init_cache(1, 1))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(module.init, jax.random.key(0), tokens, cache)["params"]


def abstract_model(config: TransformerConfig, dtype: DTypeLike) -> LanguageModel:
    """Returns a model whose parameters are `jax.ShapeDtypeStruct`s. It can be lowered, not run."""
    module = Transformer(config, jnp.dtype(dtype))
    return LanguageModel(module, abstract_params(module))
