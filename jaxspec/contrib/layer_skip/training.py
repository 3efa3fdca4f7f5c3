"""Trains a whole model to exit early (LayerSkip, Elhoushi et al., arXiv 2404.16710, section 4.1).

All of the target's weights learn to say the next token after any of its layers, through its own final norm and head:

    loss  =  sum over exits of weight * cross-entropy with the data's own tokens

in a pass where each row of the batch leaves out layers by chance, late ones more often, so that early ones rely less
on what comes after them. The result is another model: `EarlyExitDrafter` is lossless for its distribution, not for
that of the target as it was.
"""

import dataclasses
import os
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.checkpoints.orbax import save
from jaxspec.contrib.layer_skip.exits import Curriculum, Gradual, Rotational, dropout_rates, exit_weights, growth
from jaxspec.contrib.layer_skip.passes import run_dropping
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.matmul import project
from jaxspec.training.batching import Batch, at_places
from jaxspec.training.losses import acceptance
from jaxspec.training.recipe import Recipe, option
from jaxspec.training.state import rounded

# Positions whose distributions stand in memory at once.
_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class LayerSkipRecipe(Recipe):
    """Trains the target itself to exit early: another model then, whose distribution is kept in place of the target's.

    An update costs a forward and a backward pass over all layers, dropped ones included; one more forward pass through
    each layer, so that memory holds only the states between layers; the output head for each exit in the loss; and a
    pass without dropout for what is reported: `acceptance` of a draft after `layers` layers, and `exit_loss` and
    `last_loss`, the cross-entropies there and after the last layer. If `last_loss` rises, the model gets worse.

    References:
      LayerSkip: Elhoushi et al. (2024), arXiv:2404.16710, section 4.1.
    """

    layers: int = option("After how many of its layers it is to draft; all exits are trained, whatever this is.")
    dropout: float = option(
        "How often the last layer is dropped; the first never is, and those between less often.", default=0.1
    )
    growing_dropout: bool = option(
        "Whether that is reached at the last update only, from 0 at the first, as for a model that begins untrained.",
        default=False,
    )
    exit_scale: float = option("What exits before the last one weigh in the loss.", default=1.0)
    rotation: int | None = option(
        "Exits so many layers apart are in the loss of one update, and those one layer deeper in that of the next; "
        "None is from the last one down to the first, one after the other, in the first half of the updates.",
        default=8,
    )
    k: int = option("Drafts a round where it is evaluated.", default=4)
    frozen = False

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be from 0 to below 1, got {self.dropout}")
        if not 0 < self.exit_scale < float("inf"):
            raise ValueError(f"exit_scale must be above 0, got {self.exit_scale}")
        if self.rotation is not None and self.rotation < 1:
            raise ValueError(f"rotation must be at least 1, got {self.rotation}")
        if self.growing_dropout and self.dropout == 0:
            raise ValueError("growing_dropout grows to dropout, which is 0; pass a dropout above 0")

    @classmethod
    def of(cls, target: LanguageModel, **options: Any) -> "LayerSkipRecipe":
        """Returns the recipe with an exit after a quarter of the target's layers, and a rotation that fits so few.

        Raises:
          TypeError: the target's weights are no plain arrays.
          ValueError: the target has not more layers than the exit.
        """
        if kernels := packed_weights(target):
            raise TypeError(f"all weights are trained, got {type(kernels[0]).__name__}; load the target as floats")
        count = target.module.config.num_layers
        defaults: dict[str, Any] = {"layers": max(1, count // 4), "rotation": min(8, max(1, count - 1))}
        recipe = cls(**(defaults | options))
        EarlyExitDrafter(recipe.layers).check(target)
        return recipe

    # Other recipes have a field of this name; here it follows from `layers`.
    @property
    def capture(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride] no field
        """The state at the exit, as a layer index."""
        return (self.layers,)

    @property
    def curriculum(self) -> Curriculum:
        """The schedule of exits in the loss."""
        return Gradual() if self.rotation is None else Rotational(self.rotation)

    def init(self, key, target, token_counts):
        model = jax.tree.map(lambda x: x.astype(jnp.float32), target.params)
        return {"model": model, "moment": jnp.asarray([0, 1], jnp.int32)}

    def at(self, params, step, steps):
        return params | {"moment": jnp.asarray([step, steps], jnp.int32)}

    def target(self, params, target):
        kept = jax.tree.map(lambda x, like: x.astype(like.dtype), params["model"], target.params)
        return dataclasses.replace(target, params=kept)

    def loss(self, params, target, batch, features, key):
        model, answers = self.target(params, target), _Answers.of(batch)
        runs = self.runs(params["moment"], model.module.config.num_layers, batch.tokens.shape[0], key)
        cache = model.init_cache(batch.tokens.shape[0], 0)
        states = run_dropping(cast(Transformer, model.module), model.params, runs, batch.tokens, cache)
        weights = self.weights(params["moment"], len(states))
        total = sum_over_exits(model, states, weights, answers)
        count = jnp.sum(batch.answer[:, 1:], dtype=jnp.float32)
        means = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), (total, self._reported(model, features, answers)))
        return means[0], means[1] | {"count": count}

    def runs(self, moment: Int[Array, "2"], layers: int, rows: int, key: Array) -> Bool[Array, "l b"]:
        """Draws which layers run for which rows of a batch, at this update of so many."""
        rates = jnp.asarray(dropout_rates(layers, self.dropout), jnp.float32)
        if self.growing_dropout:
            rates = rates * growth(*moment)
        return jax.random.uniform(key, (layers, rows)) >= rates[:, None]

    def weights(self, moment: Int[Array, "2"], layers: int) -> Float[Array, "l"]:
        """Returns the weight of each exit in the loss; they sum to 1."""
        weights = jnp.asarray(exit_weights(layers, self.exit_scale), jnp.float32)
        step, steps = moment
        weights = jnp.where(self.curriculum.exits(step, steps, layers), weights, 0.0)
        return weights / jnp.sum(weights)

    def _reported(self, model: LanguageModel, features: Any, answers: "_Answers") -> dict[str, Array]:
        """Sums over answer tokens what the model does without dropout."""
        model = jax.lax.stop_gradient(model)

        def one(chunk):
            tokens, there, early, last = chunk
            early, last = (jax.nn.log_softmax(_logits(model, x)) for x in (early, last))
            values = {"acceptance": acceptance(last, early)}
            values |= {"exit_loss": -_of_tokens(early, tokens), "last_loss": -_of_tokens(last, tokens)}
            return {name: jnp.sum(jnp.where(there, x, 0.0)) for name, x in values.items()}

        chunks = (answers.tokens, answers.there, *map(answers.chunks, (*features.hidden, features.last)))
        return jax.tree.map(jnp.sum, jax.lax.map(one, chunks))

    def drafter(self, params, target, token_counts) -> Drafter:
        return EarlyExitDrafter(self.layers, k=self.k)

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        """Writes the whole model, in the target's dtype, as `jaxspec.load` reads it."""
        save(self.target(rounded(params, target), target), path)

    def usage(self, model, folder):
        return f"--model {folder} --draft early-exit:{self.layers}"


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Answers:
    """Holds the answer tokens of each row, in chunks of all rows, and behind them the others.

    Attributes:
      order: of each row the places before answer tokens, then the others.
      tokens: what follows these places, chunk by chunk.
      there: whether that is an answer's.
    """

    order: Int[Array, "b t"]
    tokens: Int[Array, "n b c"]
    there: Bool[Array, "n b c"]

    @classmethod
    def of(cls, batch: Batch) -> "_Answers":
        follows = jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1)))
        order = jnp.argsort(~follows, axis=1, stable=True).astype(jnp.int32)
        following = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))
        tokens, there = (_in_chunks(at_places(x, order)) for x in (following, follows))
        return cls(order, tokens, there)

    def chunks(self, states: Float[Array, "b t d"]) -> Float[Array, "n b c d"]:
        """Returns the states at these places."""
        return _in_chunks(at_places(states, self.order))


def _in_chunks(x: Array) -> Array:
    """Cuts `[b, t, ...]` into `[n, b, c, ...]`, with zeros at the end: rows may lie on several devices."""
    rows, time = x.shape[:2]
    size = min(time, max(1, _CHUNK // rows))
    x = jnp.pad(x, ((0, 0), (0, -time % size), *((0, 0),) * (x.ndim - 2)))
    return jnp.swapaxes(x.reshape(rows, -1, size, *x.shape[2:]), 0, 1)


def sum_over_exits(
    model: LanguageModel, states: Float[Array, "l b t d"], weights: Float[Array, "l"], answers: _Answers
) -> Float[Array, ""]:
    """Sums the cross-entropies of all answer tokens after each layer, weighted; an exit of weight 0 costs nothing.

    Distributions are computed again for gradients, so that they never stand in memory for more than one chunk and exit.
    """
    chunks = jax.vmap(answers.chunks)(states)
    layers, count = chunks.shape[:2]
    each = lambda x: jnp.tile(x, (layers, *(1,) * (x.ndim - 1)))  # noqa: E731
    parts = (jnp.repeat(weights, count), each(answers.tokens), each(answers.there))

    def one(part):
        weight, tokens, there, state = part

        def cross_entropy():
            log_probs = jax.nn.log_softmax(_logits(model, state))
            return -weight * jnp.sum(jnp.where(there, _of_tokens(log_probs, tokens), 0.0))

        return jax.lax.cond((weight > 0) & jnp.any(there), cross_entropy, lambda: jnp.float32(0.0))

    one = jax.checkpoint(one, prevent_cse=False)  # a loop's body has nothing outside to be merged with
    return jnp.sum(jax.lax.map(one, (*parts, chunks.reshape(-1, *chunks.shape[2:]))))


def _logits(model: LanguageModel, states: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    return project(model.normalize(states), model.head).astype(jnp.float32)


def _of_tokens(log_probs: Float[Array, "b t v"], tokens: Int[Array, "b t"]) -> Float[Array, "b t"]:
    return jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
