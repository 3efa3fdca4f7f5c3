"""Tells a GPU's compiler how often loops run: of what it does not know, the host asks the card before it goes on."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int


def known_on_gpu(trips: Int[Array, ""], usual: int) -> Int[Array, ""]:
    """Returns how often a loop runs: on a GPU always as often as usual, elsewhere no more than it must.

    Args:
      trips: how often it must run, `usual` at most; the rounds of the loop beyond that change nothing that is read.
      usual: a number that the compiler knows.

    Example:
        >>> from jaxspec.core.known import known_on_gpu
        >>> int(known_on_gpu(jnp.int32(0), 1))  # here, on a CPU
        0
    """
    known = lambda trips: jnp.full((), usual, trips.dtype)  # noqa: E731
    return jax.lax.platform_dependent(trips, cuda=known, default=lambda trips: trips)
