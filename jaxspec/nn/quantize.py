"""int8 weights and caches, for models that exceed memory or bandwidth.

The model that comes out is another target: what is lossless is lossless relative to it, and drafters trained for the
first one guess almost as well for the second.
"""

import dataclasses
from typing import Any

import jax

from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.packed import is_product, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.int8 import Int8Kernel


def quantize_weights(model: LanguageModel) -> LanguageModel:
    """The same model with int8 weights, one scale for each output (`Int8Kernel`).

    Products' kernels, the embedding and the output head; norms, biases and learned positions stay. Activations keep the
    model's dtype. Works on a model that is split over a mesh: each device rounds its own part where an output lies on
    one device, and the largest of an output's weights is found across devices where it does not.

    Args:
      model: of a `jaxspec.nn.Transformer`, with float weights.

    Raises:
      TypeError: the model is of another kind, or its weights are int8 already.
    """
    _check(model, "quantize_weights")
    if kernels := packed_weights(model):
        raise TypeError(f"quantize_weights takes plain float weights, got {type(kernels[0]).__name__}")
    params = jax.tree.map_with_path(lambda path, x: _rounded(x) if is_product(path) else x, model.params)
    return dataclasses.replace(model, params=params)


def quantize_cache(model: LanguageModel) -> LanguageModel:
    """The same model whose caches hold int8 keys and values, one scale for each vector (`Int8KVCache`).

    Keys and values are rounded before anything attends to them, so speculative and plain decoding agree exactly, up to
    rounding in bfloat16.

    Args:
      model: of a `jaxspec.nn.Transformer`.

    Raises:
      TypeError: the model is of another kind.
    """
    _check(model, "quantize_cache")
    return dataclasses.replace(model, cache_type=Int8KVCache)


def _check(model: Any, name: str) -> None:
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = type(getattr(model, "module", model)).__name__
        raise TypeError(f"{name} takes a LanguageModel of a jaxspec.nn.Transformer, got {kind}")


# Traced, so that the compiler makes no float copy, and follows how the parts of a kernel lie.
_rounded = jax.jit(Int8Kernel.of)
