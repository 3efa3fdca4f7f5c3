"""Warps logits by temperature, top-k, top-p and min-p: what of `Sampling` each device can do by itself."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Bool, Float, Shaped

from jaxspec.core.bisect import heaviest
from jaxspec.core.values import to_int32


@runtime_checkable
class Warpers(Protocol):
    """Names the parameters, one value or one a row; `None` costs nothing."""

    @property
    def temperature(self) -> Any: ...
    @property
    def top_k(self) -> Any: ...
    @property
    def top_p(self) -> Any: ...
    @property
    def min_p(self) -> Any: ...


def are_any(warpers: Warpers) -> bool:
    """Returns whether any of top-k, top-p and min-p is set, so that tokens may be left out."""
    return any(value is not None for value in (warpers.top_k, warpers.top_p, warpers.min_p))


def divisor(warpers: Warpers, dtype: DTypeLike) -> Float[Array, "_ 1 1"]:
    """Returns the temperature; 1 where it is 0."""
    temperature = _per_row(warpers.temperature, dtype)
    return jnp.where(temperature > 0, temperature, 1.0)


def drawn(warpers: Warpers, dtype: DTypeLike) -> Bool[Array, "_ 1 1"]:
    """Returns where a token is drawn, and not the most likely one taken."""
    positive = _per_row(warpers.temperature, dtype) > 0
    return positive if warpers.top_k is None else positive & (to_int32(warpers.top_k).reshape(-1, 1, 1) != 1)


def threshold(warpers: Warpers, scaled: Float[Array, "b t v"]) -> Float[Array, "_ _ 1"]:
    """Returns the lowest value that stays, `[b, t, 1]`; the maximum of `scaled` is 0."""
    lowest = jnp.full((1, 1, 1), -jnp.inf, scaled.dtype)
    if warpers.top_k is not None:
        top_k = to_int32(warpers.top_k).reshape(-1, 1, 1)
        top_k = jnp.where(top_k > 0, top_k, scaled.shape[-1])
        lowest = heaviest(scaled, jnp.ones((1, 1, 1), jnp.int32), lambda _: top_k)
    if warpers.top_p is not None:
        top_p = _per_row(warpers.top_p, scaled.dtype)
        weights = jnp.exp(keep(scaled, lowest))
        nucleus = heaviest(scaled, weights, lambda total: top_p * total)
        lowest = jnp.maximum(lowest, jnp.where(top_p < 1, nucleus, -jnp.inf))
    if warpers.min_p is not None:
        lowest = jnp.maximum(lowest, jnp.log(_per_row(warpers.min_p, scaled.dtype)))
    return lowest


def keep(scaled: Float[Array, "b t v"], lowest: Float[Array, "#b #t 1"]) -> Float[Array, "b t v"]:
    """Masks the values below a threshold with -inf."""
    return jnp.where(scaled >= lowest, scaled, -jnp.inf)


def _per_row(value: ArrayLike, dtype: DTypeLike) -> Shaped[Array, "_ 1 1"]:
    """Shapes a scalar or `[b]` value to meet `[b, t, v]`."""
    return jnp.asarray(value, dtype).reshape(-1, 1, 1)
