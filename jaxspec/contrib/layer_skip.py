"""Trains a whole model to exit early (LayerSkip, Elhoushi et al., arXiv 2404.16710, section 4.1).

All of the target's weights learn to predict the next token after any of its layers, through its final norm and head:

    loss  =  sum over exits of weight * cross-entropy with the data's own tokens

In training, each row of the batch skips layers at random, late ones more often, so that early layers rely less on later
ones. The result is another model: `EarlyExitDrafter` is lossless for its distribution, not for that of the original
target.

For four layers, `most=0.1` and `scale=1`, the dropout rates and the weights of exits in the loss are:

    layer                    0      1      2      3
    dropped            0.000  0.026  0.059  0.100     independently for each row of a batch
    weight                   1      3      6     10     divided by the sum of those in the loss
"""

import abc
import dataclasses
import math
import os
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.checkpoints.orbax import save
from jaxspec.core.pytree import register_dataclass
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.nn.cache_by_kind import LayerCache
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import Block
from jaxspec.nn.network import packed_weights
from jaxspec.nn.transformer import Transformer, first_input, positions_of
from jaxspec.ops.matmul import project
from jaxspec.training.dataset import Batch, at_places
from jaxspec.training.losses import acceptance
from jaxspec.training.recipe import Recipe, option
from jaxspec.training.state import rounded

# The number of positions whose distributions are in memory at once.
_CHUNK = 1024


def dropout_rates(layers: int, most: float) -> Float[np.ndarray, "l"]:
    """Returns `most * (exp(l * ln 2 / (layers - 1)) - 1)`: 0 for the first layer, `most` for the last of several."""
    return most * np.expm1(np.arange(layers) * (math.log(2) / (layers - 1)))


def growth(step: Int[Array, ""], steps: Int[Array, ""]) -> Float[Array, ""]:
    """Returns `exp(step * ln 2 / (steps - 1)) - 1`: from 0 at the first update to 1 at the last."""
    share = step.astype(jnp.float32) / jnp.maximum(steps - 1, 1).astype(jnp.float32)
    return jnp.expm1(share * math.log(2))


def exit_weights(layers: int, scale: float) -> Float[np.ndarray, "l"]:
    """Returns `scale * (1 + ... + l)` for the exit after `l` layers; for the last, `layers` more than the previous one.

    The paper counts layers from 0, which gives the exit after one layer a weight of 0; here they are counted from 1.
    """
    sums = np.cumsum(np.arange(1, layers + 1))
    return np.append(scale * sums[:-1], layers + scale * sums[-2])


class Curriculum(abc.ABC):
    """Chooses the exits in the loss of each update."""

    @abc.abstractmethod
    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        """Returns whether the exit after each layer is in the loss; the last one always is.

        Args:
          step: the index of the update; may be traced.
          steps: the number of updates; may be traced.
          layers: the number of the model's layers.
        """


@dataclasses.dataclass(frozen=True)
class Rotational(Curriculum):
    """Takes every `every`-th exit, shifted by one layer in each update.

    Attributes:
      every: the distance between exits, at least 1, which takes all exits in every update.
    """

    every: int

    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        layer = jnp.arange(layers, dtype=jnp.int32)
        return ((layer - step) % self.every == 0) | (layer == layers - 1)


@dataclasses.dataclass(frozen=True)
class Gradual(Curriculum):
    """Starts with the last exit, and adds the exit before it every `steps / (2 * layers)` updates."""

    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        before_last = layers - 1 - jnp.arange(layers, dtype=jnp.int32)
        # Rounded up, in two parts, as before_last * steps may overflow an integer.
        whole, rest = steps // (2 * layers), steps % (2 * layers)
        return step >= before_last * whole - (-before_last * rest) // (2 * layers)


@dataclasses.dataclass(frozen=True)
class LayerSkipRecipe(Recipe):
    """Trains the target itself to exit early, which makes another model, whose distribution is then preserved.

    An update costs a forward and a backward pass over all layers, dropped ones included; one more forward pass through
    each layer, so that only the states between layers are kept in memory; the output head for each exit in the loss;
    and a pass without dropout for the reported values: `acceptance` of a draft after `layers` layers, and `exit_loss`
    and `last_loss`, the cross-entropies there and after the last layer. If `last_loss` rises, the model gets worse.

    References:
      LayerSkip: Elhoushi et al. (2024), arXiv:2404.16710, section 4.1.
    """

    layers: int = option("After how many of its layers to draft; all exits are trained in any case.")
    dropout: float = option("The dropout rate of the last layer; it decreases to 0 at the first layer.", default=0.1)
    growing_dropout: bool = option(
        "Whether dropout grows from 0 at the first update to its full rate at the last, as for an untrained model.",
        default=False,
    )
    exit_scale: float = option("The weight in the loss of exits before the last one.", default=1.0)
    rotation: int | None = option(
        "The distance in layers between exits in the loss of one update, which move one layer deeper in the next; "
        "None adds exits one by one, from the last to the first, in the first half of the updates.",
        default=8,
    )
    k: int = option("Drafts a round in evaluation.", default=4)
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
        """Returns the recipe with an exit after a quarter of the target's layers, and a rotation that fits them.

        Raises:
          TypeError: the target's weights are not plain arrays.
          ValueError: the target has no layers after the exit.
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
        """Draws which layers run for which rows of a batch; `moment` is the update's index and their number."""
        rates = jnp.asarray(dropout_rates(layers, self.dropout), jnp.float32)
        if self.growing_dropout:
            rates = rates * growth(*moment)
        return jax.random.uniform(key, (layers, rows), jnp.float32) >= rates[:, None]

    def weights(self, moment: Int[Array, "2"], layers: int) -> Float[Array, "l"]:
        """Returns the weight of each exit in the loss; they sum to 1."""
        weights = jnp.asarray(exit_weights(layers, self.exit_scale), jnp.float32)
        step, steps = moment
        weights = jnp.where(self.curriculum.exits(step, steps, layers), weights, 0.0)
        return weights / jnp.sum(weights)

    def _reported(self, model: LanguageModel, features: Any, answers: "_Answers") -> dict[str, Array]:
        """Sums the reported values of the model without dropout over answer tokens."""
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
        """Writes the whole model in the target's dtype, for `jaxspec.load`."""
        save(self.target(rounded(params, target), target), path)

    def usage(self, model, folder):
        return f"--model {folder} --drafter early-exit:{self.layers}"


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Answers:
    """Holds the answer tokens of each row, in chunks of all rows, followed by the other tokens.

    Attributes:
      order: the places before answer tokens in each row, then the others.
      tokens: the token after each of these places, chunk by chunk.
      there: whether that token is part of an answer.
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
        """Returns the states at these places, chunk by chunk."""
        return _in_chunks(at_places(states, self.order))


def _in_chunks(x: Array) -> Array:
    """Splits `[b, t, ...]` into `[n, b, c, ...]`, padded with zeros; keeps rows together, as they may be sharded."""
    rows, time = x.shape[:2]
    size = min(time, max(1, _CHUNK // rows))
    x = jnp.pad(x, ((0, 0), (0, -time % size), *((0, 0),) * (x.ndim - 2)))
    return jnp.swapaxes(x.reshape(rows, -1, size, *x.shape[2:]), 0, 1)


def sum_over_exits(
    model: LanguageModel, states: Float[Array, "l b t d"], weights: Float[Array, "l"], answers: _Answers
) -> Float[Array, ""]:
    """Returns the weighted sum of all answer tokens' cross-entropies after each layer; zero-weight exits are skipped.

    Distributions are recomputed for gradients, so that memory never holds those of more than one chunk and exit.
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

    one = jax.checkpoint(one, prevent_cse=False)  # unneeded in a loop, whose body is compiled separately
    return jnp.sum(jax.lax.map(one, (*parts, chunks.reshape(-1, *chunks.shape[2:]))))


def _logits(model: LanguageModel, states: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    return project(model.normalize(states), model.head).astype(jnp.float32)


def _of_tokens(log_probs: Float[Array, "b t v"], tokens: Int[Array, "b t"]) -> Float[Array, "b t"]:
    return jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]


def run_dropping(
    module: Transformer,
    params: Any,
    runs: Bool[Array, "l b"],
    tokens: Int[Array, "b t"],
    cache: LayerCache,
) -> Float[Array, "l b t d"]:
    """Returns the states after each layer, before the final norm, of a pass in which rows skip layers.

    Every layer is computed for all rows. Its intermediate results are recomputed for gradients instead of being kept.

    Args:
      module: the decoder.
      params: its parameters.
      runs: which layers run for which rows; a row skips the others.
      tokens: the text; tokens only attend to each other.
      cache: an empty cache.
    """
    config = module.config
    positions = positions_of(None, cache, tokens.shape)
    x, states = first_input(config, params, tokens, positions), []
    for layer, spec in enumerate(config.layers):
        block = Block(spec, layer, module.dtype)

        @jax.checkpoint
        def run(own, x, block=block):
            return block.apply({"params": own}, x, cache, None, positions, None)[0]

        x = jnp.where(runs[layer][:, None, None], run(params[f"layer_{layer}"], x), x)
        states.append(x)
    return jnp.stack(states)
