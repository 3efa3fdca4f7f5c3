"""Defines sampling policies: the distribution that tokens are drawn from, computed from logits.

All of it applies in one order, for plain decoding, drafting and verification alike:
processors, temperature, top-k, top-p, min-p, then renormalize.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import split_sampling, warpers
from jaxspec.core.argmax import argmax
from jaxspec.core.parts import parts_of
from jaxspec.core.processing import Processor, as_tuple
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import row_sum


@runtime_checkable
class Policy(Protocol):
    """Computes a distribution over next tokens from logits. A pytree; plain decoding, drafts and verifiers share it.

    A policy of your own is a frozen dataclass under `jaxspec.core.register_dataclass`. If it has a field `processors`,
    a tuple of them, they are applied to the logits that `log_probs` is given.

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

    Attributes:
      processors: what is done to the logits before, in this order; see `jaxspec.processors`.

    Example:
        >>> generation = jaxspec.generate(target, None, prompt, max_new_tokens=4, sampling=jaxspec.Greedy())
        >>> generation.tokens.shape
        (2, 4)
    """

    processors: tuple[Processor, ...] = ()

    greedy = True

    def __post_init__(self) -> None:
        _keep_tuple(self)

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
      processors: what is done to the logits before all of these, in this order; see `jaxspec.processors`.

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
    processors: tuple[Processor, ...] = ()

    greedy = False

    def __post_init__(self) -> None:
        _keep_tuple(self)

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the log-probabilities of the warped distribution: float32, or float64 if the logits are."""
        logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
        if parts_of(logits) > 1:
            return split_sampling.log_probs(self, logits)
        # The maximum goes first: a logit divided by a tiny temperature would overflow.
        scaled = logits - jnp.max(logits, axis=-1, keepdims=True)
        scaled = scaled / warpers.divisor(self, logits.dtype)
        scaled = warpers.keep(scaled, warpers.threshold(self, scaled))
        next_log_probs = scaled - jnp.log(row_sum(jnp.exp(scaled)))[..., None]
        certain = one_hot_log(argmax(logits), logits.shape[-1]).astype(next_log_probs.dtype)
        return jnp.where(warpers.drawn(self, logits.dtype), next_log_probs, certain)


def _keep_tuple(policy: Greedy | Sampling) -> None:
    """Makes a tuple of processors that were passed as a list, so that equal policies have one structure."""
    if isinstance(policy.processors, list | Processor):
        object.__setattr__(policy, "processors", as_tuple(policy.processors))


def draw(
    policy: Policy, logits: Float[Array, "b t v"], noise: Float[Array, "b t v"]
) -> tuple[Int[Array, "b t"], Float[Array, "b t v"]]:
    """Draws a token at each position.

    Args:
      policy: what they are drawn by; not greedy.
      logits: what they are drawn from.
      noise: Gumbel noise.

    Returns:
      The tokens, int32, and `policy.log_probs(logits)`.

    Example:
        >>> noise = jnp.asarray([[[0.0, 5.0]]])
        >>> jaxspec.core.sampling.draw(jaxspec.Sampling(), jnp.zeros((1, 1, 2)), noise)[0].tolist()
        [[1]]
    """
    if type(policy) is Sampling and parts_of(logits) > 1:
        return split_sampling.draw(policy, logits, noise)
    log_probs = policy.log_probs(logits)
    return argmax(log_probs + noise), log_probs


def one_hot_log(tokens: Int[Array, "*b"], vocab_size: int) -> Float[Array, "*b {vocab_size}"]:
    """Returns the log-probabilities of the one-hot distributions on `tokens`: 0 there, -inf elsewhere.

    Example:
        >>> jaxspec.core.one_hot_log(jnp.asarray([2]), vocab_size=3).tolist()
        [[-inf, -inf, 0.0]]
    """
    ids = jnp.arange(vocab_size, dtype=tokens.dtype).reshape(*(1,) * tokens.ndim, vocab_size)
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)
