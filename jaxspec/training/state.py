"""What training changes, and the update of it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.sharding.params import parameter_axes
from jaxspec.sharding.placement import Placement
from jaxspec.training.options import TrainingOptions

# What of `Sums` is no mean.
COUNTS = ("weight", "tokens", "answer_tokens")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All of it: a run that is given one of these goes on as if it had never stopped.

    Attributes:
      step: updates so far.
      params: the recipe's: float32, and integers that are never trained.
      optimizer: AdamW's own.
    """

    step: Int[Array, ""]
    params: Any
    optimizer: Any

    @classmethod
    def initial(cls, params: Any, options: TrainingOptions) -> "TrainState":
        """Before the first update; of its own arrays, since each update takes the place of what it is given.

        Raises:
          TypeError: a parameter is of a float dtype other than float32.
        """
        for path, x in jax.tree.leaves_with_path(params):
            if x.dtype != jnp.float32 and not jnp.issubdtype(x.dtype, jnp.integer):
                raise TypeError(f"a recipe's parameters must be float32, got {x.dtype} at {jax.tree_util.keystr(path)}")
        params = jax.tree.map(jnp.array, params)
        return cls(jnp.zeros((), jnp.int32), params, optimizer(options).init(split(params)[0]))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """Of one or several batches, each weighted with how many positions its loss is a mean over.

    Attributes:
      weight: the positions.
      tokens: of the batches, without padding.
      answer_tokens: those of them that a drafter learns to guess.
      gradients: as the trained ones of `params`.
      reported: the loss and what the recipe reports.
    """

    weight: Float[Array, ""]
    tokens: Int[Array, ""]
    answer_tokens: Int[Array, ""]
    gradients: Any
    reported: dict[str, Float[Array, ""]]


def learning_rate(options: TrainingOptions) -> optax.Schedule:
    """From 0 up to the highest, then down along a cosine."""
    return optax.warmup_cosine_decay_schedule(
        0.0 if options.warmup_steps else options.learning_rate,
        options.learning_rate,
        options.warmup_steps,
        options.steps,
        options.learning_rate * options.final_fraction,
    )


@functools.cache
def optimizer(options: TrainingOptions) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 1711.05101) on gradients cut to a length."""
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
    """Both together."""
    return jax.tree.map(jnp.add, sums, others)


@functools.partial(jax.jit, static_argnames="options", donate_argnames="state")
def update(state: TrainState, sums: Sums, options: TrainingOptions) -> tuple[TrainState, dict[str, Array]]:
    """One step along the mean gradient.

    Returns:
      The next state; and the means of what was reported, with the other sums, and `gradient_norm` before it is cut.
    """
    gradients, reported = jax.tree.map(lambda x: x / jnp.maximum(sums.weight, 1.0), (sums.gradients, sums.reported))
    trained, constants = split(state.params)
    # optax mixes integers and floats, which a caller may have forbidden.
    with jax.numpy_dtype_promotion("standard"):
        changes, next_optimizer = optimizer(options).update(gradients, state.optimizer, trained)
    reported |= {"gradient_norm": optax.tree.norm(gradients)}
    reported |= {name: getattr(sums, name) for name in COUNTS}
    params = join(optax.apply_updates(trained, changes), constants)
    return TrainState(state.step + 1, params, next_optimizer), reported


def split(params: Any) -> tuple[Any, Any]:
    """The parameters that are trained, and the integers, such as a draft vocabulary; `None` stands for the others."""
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    trained = jax.tree.map(lambda x: x if floating(x) else None, params)
    return trained, jax.tree.map(lambda x: None if floating(x) else x, params)


def join(trained: Any, constants: Any) -> Any:
    """What `split` has taken apart."""
    is_none = lambda x: x is None  # noqa: E731
    return jax.tree.map(lambda x, other: other if x is None else x, trained, constants, is_leaf=is_none)


def laid_out(tree: Any, placement: Any) -> Any:
    """Parameters, or what has their names and shapes, split over a mesh as a model's are; in one place without one."""
    if not isinstance(placement, Placement):
        return tree

    def put(path, x):
        names = tuple(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return placement.constrain(x, parameter_axes(names, x.ndim))

    return jax.tree.map_with_path(put, tree)
