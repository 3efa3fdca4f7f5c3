"""What one step of training reads."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, Shaped

from jaxspec.pytree import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Conversations, padded on the right; an empty row has length 0.

    Attributes:
      tokens: the text.
      length: how many tokens of each row count.
      answer: which tokens are the assistant's, its stop token included: those that a drafter
        learns to guess.
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    answer: Bool[Array, "b t"]


def at_places(x: Shaped[Array, "b t *d"], places: Int[Array, "b a"]) -> Shaped[Array, "b a *d"]:
    """What each row has at its places, all of which it must have.

    A promise, because to check it takes a pass over what is taken, such as whole laws.
    """
    index = places.reshape(*places.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")
