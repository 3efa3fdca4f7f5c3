"""Makes EAGLE heads whose parameters are random."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.network import EagleLayer
from jaxspec.testing.random_models import random_params
from tests._fixtures import tiny

TARGET = tiny.transformer(3, layers=2)


def eagle_head(
    seed=0,
    *,
    layer=EagleLayer,
    layers=1,
    kind=EagleHead,
    capture=(0, 1, 2),
    ids=None,
    target=TARGET,
    sharpness=6.0,
    **changes,
) -> EagleHead:
    """A random head; `sharpness` scales its weights."""
    vocab = target.vocab_size if ids is None else len(ids)
    base = target.module.config
    each = {"ropes": base.ropes[:1] * layers, "windows": (None,) * layers}
    config = dataclasses.replace(base, vocab_size=vocab, num_layers=layers, query_key_norm=False, **each)
    module = layer(config, len(capture) * config.width)
    blank = EagleHead(module, {}, None, None, target.vocab_size, capture)
    shapes = jax.eval_shape(
        lambda: module.init(
            jax.random.key(0),
            jnp.zeros((1, 1, config.width)),
            jnp.zeros((1, 1, module.features)),
            blank.init_cache(1, 0),
            method="everything",
        )
    )["params"]
    params = random_params(shapes, seed, 0.02 * sharpness)
    ids = None if ids is None else jnp.asarray(ids, jnp.int32)
    return kind(module, params, ids, None, target.vocab_size, capture, **changes)


HEAD = eagle_head()
