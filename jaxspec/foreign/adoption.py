"""Adopts the weights of foreign models into the built-in transformer."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxspec.core.validate import shown
from jaxspec.foreign.adopt_maxtext import describe_maxtext
from jaxspec.foreign.adopt_tunix import describe_tunix
from jaxspec.foreign.places import Source
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer

# Positions are 32-bit integers, and some are added to each other.
_UNBOUNDED = 1 << 30


def adopt(
    model: Any,
    *,
    config: Mapping[str, Any] | Any = None,
    tokenizer: Any = None,
    context_length: int | None = None,
) -> LanguageModel:
    """Copies the weights of a foreign model into an equivalent built-in transformer.

    The mapping is compiled once for models of one configuration, and results have equal static parts. After an update
    of the weights, adopt the model again: neither this nor any program that takes the result is compiled again.

    Args:
      model: a model of `tunix.models.llama3`, `qwen2`, `qwen3`, `gemma` or `gemma3`; with `config`, the parameters of a
        MaxText model of these families, `state.params` or its subtree, as arrays or in Flax's boxes.
      config: MaxText's configuration, an object or a mapping with its keys; `None` if `model` has its own.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      context_length: the longest text; `None` means unbounded, as in both projects.

    Returns:
      The model, whose arrays are on the devices of the foreign ones, and shared with them if unchanged. Logits are the
      foreign model's up to rounding: MaxText rounds tied heads to bfloat16 for any dtype, this model does not.

    Raises:
      TypeError: the model is of another kind, or the built-in transformer cannot express it; the message says why.
      ValueError: the model has an option that the built-in transformer lacks, or its parameters do not fit its
        configuration.

    Example:
        >>> def tokens_of(model, prompt):
        ...     target = jaxspec.adopt(model)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    if context_length is not None and (isinstance(context_length, bool) or not isinstance(context_length, int)):
        raise TypeError(f"context_length must be a positive integer or None, got {shown(context_length)}")
    if context_length is not None and context_length < 1:
        raise ValueError(f"context_length must be positive, or None for no bound, got {context_length}")
    source, arrays = describe_tunix(model) if config is None else describe_maxtext(model, config)
    source.check(arrays)
    longest = _UNBOUNDED if context_length is None else context_length
    module = Transformer(dataclasses.replace(source.config, context_length=longest), source.dtype)
    return LanguageModel(module, to_params(source, arrays), tokenizer)


@functools.partial(jax.jit, static_argnums=0)
def to_params(source: Source, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Builds the parameter tree from the arrays of a foreign model, given by path."""
    places, params = dict(source.places), {}
    for mapping in source.map_params(source.config):
        node = params
        for key in mapping.path[:-1]:
            node = node.setdefault(key, {})
        tensors = (places[name].read(arrays[places[name].path], shape) for name, shape in mapping.sources)
        values: Any = mapping.build(*tensors)
        node[mapping.path[-1]] = values.astype(jnp.float32 if mapping.is_norm else source.dtype)
    return params
