"""Defines sampling policies: the distribution that tokens are drawn from, computed from logits.

Warpers apply in one order, for plain decoding, drafting and verification alike:
temperature, top-k, top-p, min-p, then renormalize.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Bool, Float, Int, Shaped

from jaxspec.core.argmax import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import row_sum
from jaxspec.core.values import to_int32


@runtime_checkable
class Policy(Protocol):
    """Computes a distribution over next tokens from logits. A pytree; plain decoding, drafts and verifiers share it.

    A policy of your own is a frozen dataclass under `jaxspec.core.register_dataclass`.

    Example:
        >>> isinstance(jaxspec.Sampling(temperature=0.7), jaxspec.Policy)
        True
    """

    @property
    def greedy(self) -> bool:
        """Whether the distribution is one-hot on the argmax of the logits: then neither key nor softmax is needed."""
        ...

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the normalized log-probabilities, float32, of the distribution that tokens are drawn from.

        Tokens that are never drawn have -inf. Every position stands alone, and row `b` uses the policy's own row `b`
        where its parameters differ by row.
        """
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Greedy:
    """Takes the argmax, the first of equals. Needs no key and no softmax.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4, sampling=jaxspec.Greedy())
        >>> generation.tokens.shape
        (2, 4)
    """

    greedy = True

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        return one_hot_log(argmax(logits), logits.shape[-1])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampling:
    """Samples by temperature, top-k, top-p and min-p: each one value or one a row, each traced.

    Attributes:
      temperature: divides the logits; `0` is the greedy one-hot distribution, without a division.
      top_k: keep the `top_k` most likely tokens and all that equal the last of them; of 1 the lowest
        id alone, as greedy decoding does. `None`, `0` or a number above the vocabulary keeps all.
      top_p: keep the smallest set of most likely tokens with at least this mass, and all that
        equal its last; `None` or `1` keeps all.
      min_p: keep tokens with at least this share of the most likely one's probability; `None`
        or `0` keeps all.

    A warper that is `None` costs nothing.

    Example:
        >>> sampling = jaxspec.Sampling(temperature=0.8, top_p=0.95)
        >>> draft = jaxspec.ModelDrafter(draft, k=2)
        >>> jaxspec.generate(target, draft, prompt, key=key, sampling=sampling, max_new_tokens=4).tokens.shape
        (2, 4)
    """

    temperature: Float[Array, "*b"] | float = 1.0
    top_k: Int[Array, "*b"] | int | None = None
    top_p: Float[Array, "*b"] | float | None = None
    min_p: Float[Array, "*b"] | float | None = None

    greedy = False

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the log-probabilities of the warped distribution: float32, or float64 if the logits are."""
        logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
        temperature = _per_row(self.temperature, logits.dtype)
        # The maximum goes first: a logit divided by a tiny temperature would overflow.
        scaled = logits - jnp.max(logits, axis=-1, keepdims=True)
        scaled = scaled / jnp.where(temperature > 0, temperature, 1.0)
        scaled = _keep(scaled, self._threshold(scaled))
        next_log_probs = scaled - jnp.log(row_sum(jnp.exp(scaled)))[..., None]
        certain = one_hot_log(argmax(logits), logits.shape[-1]).astype(next_log_probs.dtype)
        drawn = temperature > 0
        if self.top_k is not None:
            drawn = drawn & (to_int32(self.top_k).reshape(-1, 1, 1) != 1)
        return jnp.where(drawn, next_log_probs, certain)

    def _threshold(self, scaled: Float[Array, "b t v"]) -> Float[Array, "_ _ 1"]:
        """Returns the lowest value that stays, `[b, t, 1]`; the maximum of `scaled` is 0."""
        threshold = jnp.full((1, 1, 1), -jnp.inf, scaled.dtype)
        if self.top_k is not None:
            top_k = to_int32(self.top_k).reshape(-1, 1, 1)
            top_k = jnp.where(top_k > 0, top_k, scaled.shape[-1])
            threshold = _bisect(scaled, lambda keep: jnp.sum(keep, -1, keepdims=True, dtype=jnp.int32) >= top_k)
        if self.top_p is not None:
            top_p = _per_row(self.top_p, scaled.dtype)
            weights = jnp.exp(_keep(scaled, threshold))
            goal = top_p * row_sum(weights)[..., None]
            nucleus = _bisect(scaled, lambda keep: row_sum(jnp.where(keep, weights, 0.0))[..., None] >= goal)
            threshold = jnp.maximum(threshold, jnp.where(top_p < 1, nucleus, -jnp.inf))
        if self.min_p is not None:
            threshold = jnp.maximum(threshold, jnp.log(_per_row(self.min_p, scaled.dtype)))
        return threshold


def _keep(scaled: Float[Array, "b t v"], threshold: Float[Array, "#b #t 1"]) -> Float[Array, "b t v"]:
    """Masks the values below a threshold with -inf."""
    return jnp.where(scaled >= threshold, scaled, -jnp.inf)


def one_hot_log(tokens: Int[Array, "*b"], vocab_size: int) -> Float[Array, "*b {vocab_size}"]:
    """Returns the log-probabilities of the one-hot distributions on `tokens`: 0 there, -inf elsewhere.

    Example:
        >>> jaxspec.core.one_hot_log(jnp.asarray([2]), vocab_size=3).tolist()
        [[-inf, -inf, 0.0]]
    """
    ids = jnp.arange(vocab_size, dtype=tokens.dtype).reshape(*(1,) * tokens.ndim, vocab_size)
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)


def _per_row(value: ArrayLike, dtype: DTypeLike) -> Shaped[Array, "_ 1 1"]:
    """Shapes a scalar or `[b]` value to meet `[b, t, v]`."""
    return jnp.asarray(value, dtype).reshape(-1, 1, 1)


def _bisect(
    scaled: Float[Array, "b t v"], enough: Callable[[Bool[Array, "b t v"]], Bool[Array, "b t 1"]]
) -> Float[Array, "b t 1"]:
    """Finds the largest value of `scaled` at which `enough(scaled >= value)` still holds, in each row.

    Minus infinity where nothing is enough (`top_k` beyond the vocabulary).

    Bisection over the bit patterns of floats, which for values `<= 0` fall as their magnitude
    rises: exact in as many passes as a float has bits, with no sort, and nothing but
    reductions over the vocabulary (a sharded one is never gathered).
    """
    bits = jnp.finfo(scaled.dtype).bits
    integer = jnp.uint32 if bits == 32 else jnp.uint64
    magnitude = jax.lax.bitcast_convert_type(jnp.abs(scaled), integer)

    def halve(step, low):
        # `low` is the largest magnitude known not to be enough, plus one.
        probe = low + (integer(1) << (integer(bits - 2) - step.astype(integer)))
        return jnp.where(enough(magnitude < probe), low, probe)

    low = jnp.zeros((*scaled.shape[:-1], 1), integer)
    infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, scaled.dtype), integer)
    smallest = jnp.minimum(jax.lax.fori_loop(0, bits - 1, halve, low), infinity)
    return -jax.lax.bitcast_convert_type(smallest, scaled.dtype)
