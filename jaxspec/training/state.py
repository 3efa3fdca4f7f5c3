"""Defines the state of training and its updates: options, parameters, gradients and the optimizer."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.layout import Layout
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.validate import shown
from jaxspec.nn.language_model import LanguageModel
from jaxspec.sharding.params import parameter_axes
from jaxspec.sharding.placement import Placement
from jaxspec.training.dataset import Batch
from jaxspec.training.recipe import Features, Recipe

# The fields of `Sums` that are not means.
COUNTS = ("weight", "tokens", "answer_tokens")
# The name under which a recipe reports its number of positions, if its means are not over the answers' tokens.
_COUNT = "count"


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """Defines how long and how fast to train any drafter.

    Attributes:
      steps: the number of updates of the parameters.
      batch_tokens: the number of tokens of a batch, padding included.
      accumulation: the number of batches for each update.
      learning_rate: the peak, reached after `warmup_steps` and followed by a cosine decay.
      warmup_steps: the number of updates over which it rises from 0; `None` means a twentieth of all, at most 500.
      final_fraction: the learning rate at the last update, as a fraction of the peak.
      beta1: AdamW's decay rate of gradients.
      beta2: AdamW's decay rate of their squares.
      weight_decay: AdamW's weight decay, for arrays of two axes or more.
      clip: the largest global norm of the gradient.
      seed: the seed of initial parameters, of the order of the data, and of all sampling.
      checkpoint_every: the number of updates between checkpoints; the last update makes one too.
      keep: the number of checkpoints to keep.
      evaluate_every: the number of updates between measurements of the true acceptance, if there are prompts for it;
        `None` measures only after the last one.
      log_every: the number of updates for each line of the curve.

    Example:
      >>> jaxspec.training.TrainingOptions(steps=2000, batch_tokens=8192).warmup_steps
      100
    """

    steps: int
    batch_tokens: int = 4096
    accumulation: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int | None = None
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 100
    keep: int = 2
    evaluate_every: int | None = None
    log_every: int = 10

    def __post_init__(self):
        counts = ("steps", "batch_tokens", "accumulation", "checkpoint_every", "keep", "log_every")
        for name in (*counts, *(("evaluate_every",) if self.evaluate_every is not None else ())):
            _check(self, name, lambda x: isinstance(x, int) and x >= 1, "an integer of at least 1")
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", min(self.steps // 20, 500))
        below = f"an integer from 0 to below steps ({self.steps})"
        _check(self, "warmup_steps", lambda x: isinstance(x, int) and 0 <= x < self.steps, below)
        _check(self, "seed", lambda x: isinstance(x, int) and 0 <= x < 2**32, "an integer from 0 to below 2^32")
        for name in ("learning_rate", "clip"):
            _check(self, name, lambda x: 0 < x < math.inf, "above 0")
        _check(self, "weight_decay", lambda x: 0 <= x < math.inf, "at least 0")
        _check(self, "final_fraction", lambda x: 0 <= x <= 1, "from 0 to 1")
        for name in ("beta1", "beta2"):
            _check(self, name, lambda x: 0 <= x < 1, "from 0 to below 1")


def _check(options: TrainingOptions, name: str, good: Callable[[Any], bool], expected: str) -> None:
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not good(value):
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Holds the state of a run, which can be resumed from it as if it had never stopped.

    Attributes:
      step: the number of updates so far.
      params: the recipe's parameters: float32, and integers that are never trained.
      optimizer: AdamW's state.
    """

    step: Int[Array, ""]
    params: Any
    optimizer: optax.OptState

    @classmethod
    def initial(cls, params: Any, options: TrainingOptions) -> "TrainState":
        """Returns the state before the first update, with copies of all arrays, as updates donate their inputs.

        Raises:
          TypeError: a parameter has a float dtype other than float32.
        """
        for path, x in jax.tree.leaves_with_path(params):
            if x.dtype != jnp.float32 and not jnp.issubdtype(x.dtype, jnp.integer):
                raise TypeError(f"a recipe's parameters must be float32, got {x.dtype} at {jax.tree_util.keystr(path)}")
        params = jax.tree.map(jnp.array, params)
        return cls(jnp.zeros((), jnp.int32), params, optimizer(options).init(split(params)[0]))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """Holds sums over batches, each weighted by the number of positions that its loss is a mean over.

    Attributes:
      weight: the number of positions.
      tokens: the number of tokens, without padding.
      answer_tokens: the number of tokens that a drafter learns to guess.
      gradients: the gradients of the trained parameters.
      reported: the loss and the recipe's reported values.
    """

    weight: Float[Array, ""]
    tokens: Int[Array, ""]
    answer_tokens: Int[Array, ""]
    gradients: Any
    reported: dict[str, Float[Array, ""]]


@functools.partial(jax.jit, static_argnames="recipe")
def gradients(
    recipe: Recipe, params: Any, target: LanguageModel, batch: Batch, key: Array, features: Features | None = None
) -> Sums:
    """Computes a recipe's loss on a batch, and its gradients with respect to the float32 parameters.

    The loss is computed in the target's dtype: with parameters rounded to it, if that is bfloat16.

    Args:
      recipe: the recipe.
      params: its parameters.
      target: the model to draft for.
      batch: the texts.
      key: the key of the loss's random numbers.
      features: the target's pass over the texts; `None` runs it, with the current target if it is trained itself.

    Returns:
      The sums for `update`.
    """
    if features is None:
        features = target_features(recipe, recipe.target(rounded(params, target), target), batch)
    trained, constants = split(params)

    def loss(trained: Any) -> tuple[Array, Any]:
        value, reported = recipe.loss(rounded(join(trained, constants), target), target, batch, features, key)
        return value.astype(jnp.float32), reported

    (value, reported), slopes = jax.value_and_grad(loss, has_aux=True)(trained)
    reported = {"loss": value} | {name: x.astype(jnp.float32) for name, x in reported.items()}
    tokens, answers = (jnp.sum(x, dtype=jnp.int32) for x in (batch.length, batch.answer))
    count = reported.pop(_COUNT, answers.astype(jnp.float32))
    slopes, reported = jax.tree.map(lambda x: x * count, (slopes, reported))
    return Sums(count, tokens, answers, slopes, reported)


def rounded(params: Any, target: LanguageModel) -> Any:
    """Casts the trained parameters to the target's dtype."""
    trained, constants = split(params)
    return join(jax.tree.map(lambda x: x.astype(target.dtype), trained), constants)


def target_features(recipe: Recipe, target: LanguageModel, batch: Batch) -> Features:
    """Returns the states that the recipe reads, from one pass over the batch.

    Attention is causal, so padding on the right does not affect anything before it. The logits and the new cache
    entries are unused, so the compiler removes them; the cache has no slots.
    """
    cache = target.init_cache(batch.tokens.shape[0], 0)
    capture = (*recipe.capture, target.module.config.num_layers)
    *hidden, last = jax.lax.stop_gradient(target(batch.tokens, cache, capture=capture).hidden)
    return Features(tuple(hidden), last)


def learning_rate(options: TrainingOptions) -> optax.Schedule:
    """Returns the schedule: a warmup from 0 to the peak, and a cosine decay."""
    assert options.warmup_steps is not None  # set by `TrainingOptions`
    return optax.warmup_cosine_decay_schedule(
        0.0 if options.warmup_steps else options.learning_rate,
        options.learning_rate,
        options.warmup_steps,
        options.steps,
        options.learning_rate * options.final_fraction,
    )


@functools.cache
def optimizer(options: TrainingOptions) -> optax.GradientTransformation:
    """Returns AdamW (Loshchilov & Hutter 1711.05101) on gradients clipped by their global norm."""
    matrices = functools.partial(jax.tree.map, lambda x: x.ndim >= 2)
    return optax.chain(
        optax.clip_by_global_norm(options.clip),
        optax.adamw(
            learning_rate(options),
            options.beta1,
            options.beta2,
            weight_decay=options.weight_decay,
            mask=matrices,
        ),
    )


@functools.partial(jax.jit, donate_argnums=0)
def add(sums: Sums, others: Sums) -> Sums:
    """Adds two sums."""
    return jax.tree.map(jnp.add, sums, others)


@functools.partial(jax.jit, static_argnames="options", donate_argnames="state")
def update(state: TrainState, sums: Sums, options: TrainingOptions) -> tuple[TrainState, dict[str, Array]]:
    """Makes one step along the mean gradient.

    Returns:
      The next state; and the means of the reported values, the other sums, and `gradient_norm` before clipping.
    """
    gradients, reported = jax.tree.map(lambda x: x / jnp.maximum(sums.weight, 1.0), (sums.gradients, sums.reported))
    trained, constants = split(state.params)
    # optax mixes integers and floats, which the caller may have disallowed.
    with jax.numpy_dtype_promotion("standard"):
        changes, next_optimizer = optimizer(options).update(gradients, state.optimizer, trained)
    reported |= {"gradient_norm": optax.tree.norm(gradients)}
    reported |= {name: getattr(sums, name) for name in COUNTS}
    params = join(optax.apply_updates(trained, changes), constants)
    return TrainState(state.step + 1, params, next_optimizer), reported


def split(params: Any) -> tuple[Any, Any]:
    """Splits parameters into trained ones and integers, such as a draft vocabulary, with `None` for the others."""
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    trained = jax.tree.map(lambda x: x if floating(x) else None, params)
    return trained, jax.tree.map(lambda x: None if floating(x) else x, params)


def join(trained: Any, constants: Any) -> Any:
    """Inverts `split`."""
    is_none = lambda x: x is None  # noqa: E731
    return jax.tree.map(lambda x, other: other if x is None else x, trained, constants, is_leaf=is_none)


def laid_out(tree: Any, placement: Layout) -> Any:
    """Shards parameters, or trees with their names and shapes, like a model's; without a mesh, does nothing."""
    if not isinstance(placement, Placement):
        return tree

    def put(path: tuple[Any, ...], x: Array) -> Array:
        names = tuple(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return placement.constrain(x, parameter_axes(names, x.ndim))

    return jax.tree.map_with_path(put, tree)
