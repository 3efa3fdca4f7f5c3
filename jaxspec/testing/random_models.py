"""Makes decoders with random weights, small enough to compile in a second."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.params import abstract_params
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.rope import Rope


def random_model(config: TransformerConfig, seed: int, scale: float) -> LanguageModel:
    """Makes a decoder with random weights of spread `scale` from a configuration."""
    return LanguageModel(Transformer(config), random_params(_shapes(config), seed, scale))


def _shapes(config: TransformerConfig):
    """Returns the shapes of the parameters, cached, since tests make many similar models."""
    if type(config) is not TransformerConfig or (config.experts and config.experts.dense_layers):
        return _traced(config)
    ropes, windows = (config.ropes[0] and Rope(1e4),), (None,)
    changes = {"num_layers": 1, "ropes": ropes, "windows": windows, "attention_scale": None}
    shapes = dict(_traced(dataclasses.replace(config, **changes)))
    layer = shapes.pop("layer_0")
    return shapes | {f"layer_{number}": layer for number in range(config.num_layers)}


@functools.cache
def _traced(config: TransformerConfig):
    return abstract_params(Transformer(config))


def random_params(shapes, seed: int, scale: float):
    """Makes random parameters of the given shapes; vectors have spread 0.1, around 1 for scales."""
    rng = np.random.default_rng(seed)

    def leaf(path, x):
        values = (rng.normal(size=x.shape) * (scale if x.ndim > 1 else 0.1)).astype(x.dtype)
        return jnp.asarray(values + values.dtype.type(path[-1].key == "scale"))

    return jax.tree.map_with_path(leaf, shapes)


def wide_transformer(seed=0, *, vocab=64, heads=8, width=32, head_dim=8, **options) -> LanguageModel:
    """Makes a random decoder whose heads and inner width can be split over eight devices."""
    options = {"ropes": (Rope(1e4),), "windows": (None,), "tied_head": True} | options
    return random_model(TransformerConfig(vocab, 1, width, 2 * heads, heads, head_dim, 64, 512, **options), seed, 0.2)
