"""Decoders small enough to compile in a second, and the distribution of one of them from one pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.config import TransformerConfig
from jaxspec.ops.rope import Rope
from jaxspec.testing.history_models import HistoryModel
from jaxspec.testing.random_models import random_model

VOCAB = 11


def config(*, vocab=VOCAB, layers=1, **options) -> TransformerConfig:
    """A decoder of width 16 with two query heads a key-value head."""
    usual = {"context_length": 512, "ropes": (Rope(1e4),) * layers, "windows": (None,) * layers, "tied_head": True}
    return TransformerConfig(vocab, layers, 16, 2, 1, 8, 24, **usual | options)


def transformer(seed=0, *, sharpness=8.0, **options) -> jaxspec.LanguageModel:
    """A random decoder; `sharpness` scales its weights, so that its distributions are far from uniform."""
    return random_model(config(**options), seed, 0.02 * sharpness)


def in_dtype(model: jaxspec.LanguageModel, dtype) -> jaxspec.LanguageModel:
    """The model with weights and activations of another dtype."""
    params = jax.tree.map(lambda x: x.astype(dtype), model.params)
    return dataclasses.replace(model, module=model.module.clone(dtype=dtype), params=params)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BoundedModel(HistoryModel):
    """A `HistoryModel` whose texts have at most `context_length` tokens."""

    context_length: int = dataclasses.field(metadata={"static": True})


def bounded(model: HistoryModel, context_length: int) -> BoundedModel:
    return BoundedModel(model.a, model.b, context_length)


def transformer_probs(model: jaxspec.LanguageModel, text) -> np.ndarray:
    """The distribution of the token after `text`, from one pass over all of it."""
    padded = jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32)
    return np.asarray(jax.nn.softmax(_score(model, padded)[0, len(text) - 1]))


@jax.jit
def _score(model, tokens):
    return model(tokens, model.init_cache(1, tokens.shape[1])).logits
