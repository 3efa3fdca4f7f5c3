"""Computes the divergences of a draft's distribution from the target's, which training minimizes.

Distributions are log-probabilities over the tokens that the draft can guess, `[..., n]`. The draft's probabilities sum
to 1. The target's may sum to less: what it gives to tokens outside a draft vocabulary can never be accepted, and counts
accordingly. A token of probability 0 has log-probability -inf.

The divergences are those of DistillSpec (Zhou et al. 2310.08461, section 3), and the likelihood of acceptance.
"""

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

# Replaces the log of 0 where a divergence would be infinite and its gradient useless.
_LOWEST = -30.0


class Divergence(abc.ABC):
    """Measures how far a draft's distribution is from the target's at each position; smallest if they are equal."""

    @abc.abstractmethod
    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        """Returns the divergence in nats (total variation: a probability).

        Args:
          target: log-probabilities of the target, float32; treated as constants.
          draft: log-probabilities of the draft, float32.
        """


@dataclasses.dataclass(frozen=True)
class ForwardKL(Divergence):
    """Computes `sum target log(target / draft)` over tokens that can be guessed: covers all of the target's mass."""

    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        return _expected(target, target, draft)


@dataclasses.dataclass(frozen=True)
class ReverseKL(Divergence):
    """Computes `sum draft log(draft / target)`: keeps the draft where the target has mass.

    A token of target probability 0 would be infinitely far; it counts as if its probability were e^-30.
    """

    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        return _expected(draft, draft, jnp.maximum(target, _LOWEST))


@dataclasses.dataclass(frozen=True)
class JensenShannon(Divergence):
    """Computes `beta KL(target | mix) + (1 - beta) KL(draft | mix)`, with `mix = beta target + (1 - beta) draft`.

    Attributes:
      beta: the weight of the target, in (0, 1).
    """

    beta: float = 0.5

    def __post_init__(self):
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be between 0 and 1, got {self.beta}; pass 0.5, or use forward or reverse KL")

    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        beta = self.beta
        mixture = jnp.logaddexp(*(_floored(x) + math.log(w) for x, w in ((target, beta), (draft, 1 - beta))))
        # The target's mass on other tokens appears in the mixture with weight beta.
        rest = jnp.maximum(1 - _sum_exp(target), 0.0) * -math.log(beta)
        return beta * (_expected(target, target, mixture) + rest) + (1 - beta) * _expected(draft, draft, mixture)


@dataclasses.dataclass(frozen=True)
class TotalVariation(Divergence):
    """Computes `1 - sum min(target, draft)`: the probability that a draft is rejected.

    Its gradient vanishes where the distributions hardly overlap: start with another divergence, or mix them.
    """

    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        return 1 - acceptance(target, draft)


@dataclasses.dataclass(frozen=True)
class LikelihoodOfAcceptance(Divergence):
    """Computes `-log sum min(target, draft)`, the negative log of acceptance; its gradient does not vanish at first."""

    def __call__(self, target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
        return -jax.nn.logsumexp(jnp.minimum(_floored(target), _floored(draft)), axis=-1)


def acceptance(target: Float[Array, "*rows n"], draft: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Returns `sum min(target, draft)`: the probability that a sampled draft is accepted.

    Args:
      target: log-probabilities of the target.
      draft: log-probabilities of the draft.

    References:
      Leviathan et al. (2022), arXiv:2211.17192, section 3.
    """
    return _sum_exp(jnp.minimum(target, draft))


def masked_mean(values: Float[Array, "*rows"], mask: Bool[Array, "*rows"]) -> Float[Array, ""]:
    """Returns the mean over the positions of a mask; 0 if it is empty."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1.0)


_DIVERGENCES = {
    "forward-kl": ForwardKL,
    "reverse-kl": ReverseKL,
    "jsd": JensenShannon,
    "tvd": TotalVariation,
    "acceptance": LikelihoodOfAcceptance,
}


NAMES = ", ".join((*_DIVERGENCES, "jsd:BETA"))


def by_name(name: str) -> Divergence:
    """Creates a divergence by name: `forward-kl`, `reverse-kl`, `jsd` (or `jsd:BETA`), `tvd` or `acceptance`.

    Raises:
      ValueError: there is no divergence of this name.
    """
    kind, _, beta = name.partition(":")
    if kind not in _DIVERGENCES or (beta and kind != "jsd"):
        raise ValueError(f"unknown divergence {name!r}; expected {NAMES}")
    if not beta:
        return _DIVERGENCES[kind]()
    try:
        return JensenShannon(float(beta))
    except ValueError as error:
        raise ValueError(f"{name!r} has no beta between 0 and 1; pass jsd:0.5, for example") from error


def name_of(divergence: Divergence) -> str:
    """Returns the name of a divergence for `by_name`."""
    (name,) = (name for name, kind in _DIVERGENCES.items() if type(divergence) is kind)
    return f"{name}:{divergence.beta}" if isinstance(divergence, JensenShannon) else name


def _expected(
    log_probs: Float[Array, "*rows n"], first: Float[Array, "*rows n"], second: Float[Array, "*rows n"]
) -> Float[Array, "*rows"]:
    """Returns the mean of `first - second` over tokens in the support of all three; gradients are finite."""
    alive = (log_probs > -jnp.inf) & (first > -jnp.inf) & (second > -jnp.inf)
    first, second = (jnp.where(alive, x, 0.0) for x in (first, second))
    return jnp.sum(jnp.exp(jnp.where(alive, log_probs, -jnp.inf)) * (first - second), axis=-1)


def _floored(log_probs: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Replaces -inf by a number low enough to contribute nothing; its gradient is 0."""
    return jnp.where(log_probs > -jnp.inf, log_probs, 4 * _LOWEST)


def _sum_exp(log_probs: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    return jnp.sum(jnp.exp(log_probs), axis=-1)
