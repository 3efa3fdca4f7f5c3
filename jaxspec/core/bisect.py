"""Finds thresholds by bisection over the bits of floats: exact, and without a sort."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped, UInt

from jaxspec.core.parts import cut, exchange
from jaxspec.core.sums import row_sum

# What a pass settles where it costs more than its operations: on a mesh it waits for the other devices.
_BITS_A_PASS = 4

_Goal = Callable[[Shaped[Array, "b t 1"]], Shaped[Array, "#b #t 1"]]


def heaviest(scaled: Float[Array, "b t v"], weights: Shaped[Array, "#b #t #v"], goal: _Goal) -> Float[Array, "b t 1"]:
    """Finds the largest value of `scaled` at which the tokens that have it, or more, weigh enough, in each row.

    The bits of values `<= 0` fall as their magnitude rises: the search takes as many halvings as a float has bits, and
    nothing but reductions over the vocabulary (a sharded one is never gathered). A CPU makes one halving a pass, which
    takes the fewest operations, other platforms four: their probes are compared in one pass.

    Args:
      scaled: values `<= 0`, float32 or float64.
      weights: of the tokens, not negative: floats, or int32 to count them.
      goal: what is enough, given what all tokens weigh, `[b, t, 1]`.

    Returns:
      The values, minus infinity where all tokens weigh less (`top_k` beyond the vocabulary).

    Example:
        >>> scaled, ones = jnp.asarray([[[-3.0, 0.0, -2.0]]]), jnp.ones((1, 1, 1), jnp.int32)
        >>> jaxspec.core.bisect.heaviest(scaled, ones, lambda total: 2 * ones).tolist()
        [[[-2.0]]]
    """
    bits = jnp.finfo(scaled.dtype).bits
    integer = jnp.uint32 if bits == 32 else jnp.uint64
    magnitude = jax.lax.bitcast_convert_type(jnp.abs(scaled), integer)
    weights = jnp.broadcast_to(weights, scaled.shape)
    smallest = jax.lax.platform_dependent(
        *(magnitude, weights),
        cpu=lambda magnitude, weights: _one_bit_a_pass(magnitude, weights, goal),
        default=lambda magnitude, weights: _four_bits_a_pass(magnitude, weights, goal),
    )
    infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, scaled.dtype), integer)
    return -jax.lax.bitcast_convert_type(jnp.minimum(smallest, infinity), scaled.dtype)


def _one_bit_a_pass(
    magnitude: UInt[Array, "b t v"], weights: Shaped[Array, "b t v"], goal: _Goal
) -> UInt[Array, "b t 1"]:
    """Returns the least magnitude up to which tokens weigh enough; above all floats if there is none."""
    integer, bits = magnitude.dtype.type, magnitude.dtype.itemsize * 8
    enough = goal(_total(weights))

    def halve(step, low):
        # `low` is the largest magnitude known not to be enough, plus one.
        probe = low + (integer(1) << (integer(bits - 2) - step.astype(integer)))
        return jnp.where(_total(jnp.where(magnitude < probe, weights, 0)) >= enough, low, probe)

    return jax.lax.fori_loop(0, bits - 1, halve, jnp.zeros((*magnitude.shape[:-1], 1), integer))


def _total(weights: Shaped[Array, "b t v"]) -> Shaped[Array, "b t 1"]:
    counts = jnp.issubdtype(weights.dtype, jnp.integer)
    return (jnp.sum(weights, axis=-1, dtype=weights.dtype) if counts else row_sum(weights))[..., None]


def _four_bits_a_pass(
    magnitude: UInt[Array, "b t v"], weights: Shaped[Array, "b t v"], goal: _Goal
) -> UInt[Array, "b t 1"]:
    """Returns what `_one_bit_a_pass` does, from a quarter of the passes over the tokens."""
    integer, passes = magnitude.dtype.type, magnitude.dtype.itemsize * 8 // _BITS_A_PASS
    digits = jnp.arange(1, 2**_BITS_A_PASS, dtype=integer)[None, None]
    low = jnp.zeros((*magnitude.shape[:-1], 1), integer)
    magnitude, weights = cut(magnitude), cut(weights)

    def narrow(step, low):
        place = integer(_BITS_A_PASS) * (integer(passes - 1) - step.astype(integer))
        # One by one, in one pass: a TPU takes twice as long for an axis of probes.
        probes = jnp.unstack((low + (digits << place))[..., None, None], axis=2)
        each = [weights, *(jnp.where(magnitude < probe, weights, 0) for probe in probes)]
        (sums,) = exchange(jnp.stack([jnp.sum(one, axis=-1, dtype=one.dtype) for one in each], axis=2))
        sums = jnp.sum(sums, axis=-1, dtype=sums.dtype)
        short = sums[..., 1:] < goal(sums[..., :1])
        return low + (jnp.sum(short, axis=-1, keepdims=True, dtype=integer) << place)

    # Straight on: a device that loops would ask the host each time, or wait for what precedes the loop.
    return jax.lax.fori_loop(0, passes, narrow, low, unroll=True)
