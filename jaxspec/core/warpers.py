"""Warps logits with temperature, top-k, top-p and min-p, finding thresholds without a sort or a gather."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Bool, Float, Shaped, UInt

from jaxspec.core.parts import cut, exchange
from jaxspec.core.sums import row_sum
from jaxspec.core.validate import to_int32


@runtime_checkable
class Warpers(Protocol):
    """Specifies the parameters, one value or one per row; `None` costs nothing."""

    @property
    def temperature(self) -> Any: ...
    @property
    def top_k(self) -> Any: ...
    @property
    def top_p(self) -> Any: ...
    @property
    def min_p(self) -> Any: ...


def are_any(warpers: Warpers) -> bool:
    """Returns whether any of top-k, top-p and min-p is set, so that tokens may be excluded."""
    return any(value is not None for value in (warpers.top_k, warpers.top_p, warpers.min_p))


def divisor(warpers: Warpers, dtype: DTypeLike) -> Float[Array, "_ 1 1"]:
    """Returns the temperature; 1 where it is 0."""
    temperature = _per_row(warpers.temperature, dtype)
    return jnp.where(temperature > 0, temperature, 1.0)


def drawn(warpers: Warpers, dtype: DTypeLike) -> Bool[Array, "_ 1 1"]:
    """Returns whether each row samples, instead of taking the most likely token."""
    positive = _per_row(warpers.temperature, dtype) > 0
    return positive if warpers.top_k is None else positive & (to_int32(warpers.top_k).reshape(-1, 1, 1) != 1)


def threshold(warpers: Warpers, scaled: Float[Array, "b t v"]) -> Float[Array, "_ _ 1"]:
    """Returns the lowest value that is kept, `[b, t, 1]`; the maximum of `scaled` must be 0."""
    lowest = jnp.full((1, 1, 1), -jnp.inf, scaled.dtype)
    if warpers.top_k is not None:
        top_k = to_int32(warpers.top_k).reshape(-1, 1, 1)
        most = jnp.where(top_k > 0, top_k, scaled.shape[-1])
        lowest = _if_any(top_k > 0, lambda: heaviest(scaled, jnp.ones((1, 1, 1), jnp.int32), lambda _: most), scaled)
    if warpers.top_p is not None:
        top_p, above = _per_row(warpers.top_p, scaled.dtype), lowest
        nucleus = lambda: heaviest(scaled, jnp.exp(keep(scaled, above)), lambda total: top_p * total)  # noqa: E731
        lowest = jnp.maximum(lowest, jnp.where(top_p < 1, _if_any(top_p < 1, nucleus, scaled), -jnp.inf))
    if warpers.min_p is not None:
        lowest = jnp.maximum(lowest, jnp.log(_per_row(warpers.min_p, scaled.dtype)))
    return lowest


def _if_any(
    used: Bool[Array, "_ 1 1"], find: Callable[[], Float[Array, "b t 1"]], scaled: Float[Array, "b t v"]
) -> Float[Array, "b t 1"]:
    """Returns `find()`; on a CPU -inf if no row uses it. Other devices would ask the host about the condition."""
    none = lambda: jnp.full((*scaled.shape[:-1], 1), -jnp.inf, scaled.dtype)  # noqa: E731
    return jax.lax.platform_dependent(cpu=lambda: jax.lax.cond(jnp.any(used), find, none), default=find)


def keep(scaled: Float[Array, "b t v"], lowest: Float[Array, "#b #t 1"]) -> Float[Array, "b t v"]:
    """Masks the values below a threshold with -inf."""
    return jnp.where(scaled >= lowest, scaled, -jnp.inf)


def _per_row(value: ArrayLike, dtype: DTypeLike) -> Shaped[Array, "_ 1 1"]:
    """Shapes a scalar or `[b]` value to broadcast with `[b, t, v]`."""
    return jnp.asarray(value, dtype).reshape(-1, 1, 1)


# The bits found per pass if a pass costs more than its operations: on a mesh it waits for the other devices.
_BITS_A_PASS = 4

_Goal = Callable[[Shaped[Array, "b t 1"]], Shaped[Array, "#b #t 1"]]


def heaviest(scaled: Float[Array, "b t v"], weights: Shaped[Array, "#b #t #v"], goal: _Goal) -> Float[Array, "b t 1"]:
    """Finds, in each row, the largest value of `scaled` such that the tokens at or above it reach the goal weight.

    Bisects the bits of the magnitude: one halving per bit of a float, with only reductions over the vocabulary (a
    sharded one is never gathered). A CPU makes one halving per pass, which takes the fewest operations. Other platforms
    make four, whose probes are compared in one pass.

    Args:
      scaled: values `<= 0`, float32 or float64.
      weights: nonnegative weights of the tokens: floats, or int32 to count them.
      goal: returns the goal weight, given the total weight, `[b, t, 1]`.

    Returns:
      The values, `[b, t, 1]`; -inf if all tokens together weigh less (`top_k` beyond the vocabulary).

    Example:
        >>> scaled, ones = jnp.asarray([[[-3.0, 0.0, -2.0]]]), jnp.ones((1, 1, 1), jnp.int32)
        >>> jaxspec.core.warpers.heaviest(scaled, ones, lambda total: 2 * ones).tolist()
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
    """Returns the least magnitude up to which tokens reach the goal; above all floats if there is none."""
    integer, bits = magnitude.dtype.type, magnitude.dtype.itemsize * 8
    enough = goal(_total(weights))

    def halve(step, low):
        # `low` is the largest magnitude known not to reach the goal, plus one.
        probe = low + (integer(1) << (integer(bits - 2) - step.astype(integer)))
        return jnp.where(_total(jnp.where(magnitude < probe, weights, 0)) >= enough, low, probe)

    return jax.lax.fori_loop(0, bits - 1, halve, jnp.zeros((*magnitude.shape[:-1], 1), integer))


def _total(weights: Shaped[Array, "b t v"]) -> Shaped[Array, "b t 1"]:
    counts = jnp.issubdtype(weights.dtype, jnp.integer)
    return (jnp.sum(weights, axis=-1, dtype=weights.dtype) if counts else row_sum(weights))[..., None]


def _four_bits_a_pass(
    magnitude: UInt[Array, "b t v"], weights: Shaped[Array, "b t v"], goal: _Goal
) -> UInt[Array, "b t 1"]:
    """Computes `_one_bit_a_pass` in a quarter of the passes over the tokens."""
    integer, passes = magnitude.dtype.type, magnitude.dtype.itemsize * 8 // _BITS_A_PASS
    digits = jnp.arange(1, 2**_BITS_A_PASS, dtype=integer)[None, None]
    low = jnp.zeros((*magnitude.shape[:-1], 1), integer)
    magnitude, weights = cut(magnitude), cut(weights)

    def narrow(step, low):
        place = integer(_BITS_A_PASS) * (integer(passes - 1) - step.astype(integer))
        # Unstacked, within one pass: an axis of probes takes twice as long on a TPU.
        probes = jnp.unstack((low + (digits << place))[..., None, None], axis=2)
        each = [weights, *(jnp.where(magnitude < probe, weights, 0) for probe in probes)]
        (sums,) = exchange(jnp.stack([jnp.sum(one, axis=-1, dtype=one.dtype) for one in each], axis=2))
        sums = jnp.sum(sums, axis=-1, dtype=sums.dtype)
        short = sums[..., 1:] < goal(sums[..., :1])
        return low + (jnp.sum(short, axis=-1, keepdims=True, dtype=integer) << place)

    # Unrolled: a loop would ask the host each time on some devices, or wait for everything before it.
    return jax.lax.fori_loop(0, passes, narrow, low, unroll=True)
