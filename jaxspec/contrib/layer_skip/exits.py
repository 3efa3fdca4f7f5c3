"""Schedules layer dropout and exits for LayerSkip: how often layers are dropped, and the weights of exits in the loss.

Elhoushi et al., arXiv 2404.16710, section 4.1. For a model of four layers, `most=0.1` and `scale=1`:

    layer                    0      1      2      3
    dropped            0.000  0.026  0.059  0.100     one row of a batch at a time
    weight                   1      3      6     10     over their sum, of those that are in the loss
"""

import abc
import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int


def dropout_rates(layers: int, most: float) -> Float[np.ndarray, "l"]:
    """Returns `most * (exp(l * ln 2 / (layers - 1)) - 1)`: 0 for the first layer, `most` for the last of several."""
    return most * np.expm1(np.arange(layers) * (math.log(2) / (layers - 1)))


def growth(step: Int[Array, ""], steps: Int[Array, ""]) -> Float[Array, ""]:
    """Returns `exp(step * ln 2 / (steps - 1)) - 1`: from 0 at the first update to 1 at the last."""
    share = step.astype(jnp.float32) / jnp.maximum(steps - 1, 1).astype(jnp.float32)
    return jnp.expm1(share * math.log(2))


def exit_weights(layers: int, scale: float) -> Float[np.ndarray, "l"]:
    """Returns `scale * (1 + ... + l)` for the exit after `l` layers, the last: `layers` more than the one before.

    The paper counts layers from 0, and so gives the exit after one layer no weight at all; here they count from 1.
    """
    sums = np.cumsum(np.arange(1, layers + 1))
    return np.append(scale * sums[:-1], layers + scale * sums[-2])


class Curriculum(abc.ABC):
    """Chooses the exits in the loss of an update."""

    @abc.abstractmethod
    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        """Returns whether the exit after each layer is in the loss; the last one always is.

        Args:
          step: the number of the update, from 0; may be traced.
          steps: how many updates there are; may be traced.
          layers: of the model.
        """


@dataclasses.dataclass(frozen=True)
class Rotational(Curriculum):
    """Takes each `every`-th exit, and in the next update those one layer deeper.

    Attributes:
      every: at least 1, which takes all exits in every update.
    """

    every: int

    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        layer = jnp.arange(layers, dtype=jnp.int32)
        return ((layer - step) % self.every == 0) | (layer == layers - 1)


@dataclasses.dataclass(frozen=True)
class Gradual(Curriculum):
    """Takes the last exit at first, and one more before it each `steps / (2 * layers)` updates."""

    def exits(self, step: Int[Array, ""], steps: Int[Array, ""], layers: int) -> Bool[Array, "l"]:
        before_last = layers - 1 - jnp.arange(layers, dtype=jnp.int32)
        # Rounded up; in two parts, since before_last * steps may be more than an integer holds.
        whole, rest = steps // (2 * layers), steps % (2 * layers)
        return step >= before_last * whole - (-before_last * rest) // (2 * layers)
