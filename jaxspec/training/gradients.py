"""One batch: the target's pass, the recipe's loss, and its gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Batch
from jaxspec.training.recipe import Features, Recipe
from jaxspec.training.state import Sums, join, split

# A recipe that takes its means over other positions than the answers' reports how many under this name.
COUNT = "count"


@functools.partial(jax.jit, static_argnames="recipe")
def gradients(
    recipe: Recipe, params: Any, target: LanguageModel, batch: Batch, key: Array, features: Features | None = None
) -> Sums:
    """The recipe's loss on a batch and its gradients in the float32 parameters.

    The loss is computed in the target's dtype: of parameters rounded to it, if that is bfloat16. Without `features`
    the target reads the batch: as it is now, where it is trained itself.
    """
    if features is None:
        features = target_features(recipe, recipe.target(rounded(params, target), target), batch)
    trained, constants = split(params)

    def loss(trained):
        value, reported = recipe.loss(rounded(join(trained, constants), target), target, batch, features, key)
        return value.astype(jnp.float32), reported

    (value, reported), slopes = jax.value_and_grad(loss, has_aux=True)(trained)
    reported = {"loss": value} | {name: x.astype(jnp.float32) for name, x in reported.items()}
    tokens, answers = (jnp.sum(x, dtype=jnp.int32) for x in (batch.length, batch.answer))
    count = reported.pop(COUNT, answers.astype(jnp.float32))
    slopes, reported = jax.tree.map(lambda x: x * count, (slopes, reported))
    return Sums(count, tokens, answers, slopes, reported)


def rounded(params: Any, target: LanguageModel) -> Any:
    """The parameters in the dtype that the target computes in."""
    trained, constants = split(params)
    return join(jax.tree.map(lambda x: x.astype(target.dtype), trained), constants)


def target_features(recipe: Recipe, target: LanguageModel, batch: Batch) -> Features:
    """The states that the recipe reads, of one pass over the batch.

    Attention is causal, so that padding on the right changes nothing before it. The logits and the fresh cache entries
    are used by nobody, and the compiler leaves them out; the cache has no slots.
    """
    cache = target.init_cache(batch.tokens.shape[0], 0)
    capture = (*recipe.capture, target.module.config.num_layers)
    *hidden, last = jax.lax.stop_gradient(target(batch.tokens, cache, capture=capture).hidden)
    return Features(tuple(hidden), last)
