"""A model without weights: shapes and dtypes, to read a checkpoint into or to compile ahead of time."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.model import LanguageModel
from jaxspec.nn import Transformer, TransformerConfig


def abstract_params(module: Transformer) -> Any:
    """The `params` collection of a module as `jax.ShapeDtypeStruct`s."""
    cache = jax.eval_shape(lambda: LanguageModel(module, {}).init_cache(1, 1))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(module.init, jax.random.key(0), tokens, cache)["params"]


def abstract_model(config: TransformerConfig, dtype: Any) -> LanguageModel:
    """A model of this shape whose parameters are `jax.ShapeDtypeStruct`s. It can be lowered, not run."""
    module = Transformer(config, jnp.dtype(dtype))
    return LanguageModel(module, abstract_params(module))
