"""Defines sampling policies, which compute the distribution of tokens from logits.

Plain decoding, drafting and verification all apply them in one order:
processors, temperature, top-k, top-p, min-p, then renormalize.
"""

import dataclasses
from typing import Protocol, Self, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import native_sampling, split_sampling, warpers
from jaxspec.core.parts import argmax, parts_of
from jaxspec.core.processing import Processor, as_tuple, processors_of, with_processors
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng, drafts_noise
from jaxspec.core.sums import row_sum
from jaxspec.core.typed import typed
from jaxspec.core.validate import to_int32


@runtime_checkable
class Policy(Protocol):
    """Computes a distribution over next tokens from logits. A pytree; plain decoding, drafts and verifiers share it.

    A custom policy is a frozen dataclass under `jaxspec.core.register_dataclass`. If it has a field `processors`, a
    tuple, these are applied to logits before `log_probs`.

    Example:
        >>> isinstance(jaxspec.Sampling(temperature=0.7), jaxspec.Policy)
        True
    """

    @property
    def greedy(self) -> bool:
        """Whether the distribution is one-hot on the argmax of the logits, and needs neither key nor softmax."""
        ...

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the normalized log-probabilities of the distribution that tokens are drawn from, float32.

        Excluded tokens have -inf. Positions are independent, and row `b` uses row `b` of parameters that differ by row.
        """
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Greedy:
    """Takes the argmax, the lowest id in a tie. Needs no key and no softmax.

    Attributes:
      processors: the logits processors, applied in this order; see `jaxspec.processors`.

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
    """Samples with temperature, top-k, top-p and min-p: each one value or one per row, traced.

    Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in
    `Sampling()`; 0, which is greedy, in `jaxspec.generate`.

    Attributes:
      temperature: divides the logits; `0` is the greedy one-hot distribution, without a division.
      top_k: keep the `top_k` most likely tokens and all that tie with the last of them; 1 keeps only the lowest id, as
        in greedy decoding. `None`, `0` or a number above the vocabulary size keeps all.
      top_p: keep the smallest set of most likely tokens with at least this mass, and all that tie with the last of
        them; `None` or `1` keeps all.
      min_p: keep tokens with at least this fraction of the highest probability; `None` or `0` keeps all.
      processors: the logits processors, applied before all of these, in this order; see `jaxspec.processors`.

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

    def spread(self, batch: int) -> Self:
        """Broadcasts each parameter to one value per row, so that new values or mixes do not recompile."""
        number = lambda x: None if x is None else jnp.broadcast_to(jnp.asarray(x, jnp.float32), (batch,))  # noqa: E731
        return dataclasses.replace(
            self,
            temperature=number(self.temperature),
            top_k=None if self.top_k is None else jnp.broadcast_to(to_int32(self.top_k), (batch,)),
            top_p=number(self.top_p),
            min_p=number(self.min_p),
        )

    def log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the log-probabilities of the warped distribution: float32, or float64 if the logits are."""
        logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
        if parts_of(logits) > 1:
            return split_sampling.log_probs(self, logits)
        return native_sampling.log_probs(self, logits, self._by_xla)

    def _by_xla(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        # Subtracts the maximum first: a logit divided by a tiny temperature would overflow.
        scaled = logits - jnp.max(logits, axis=-1, keepdims=True)
        scaled = scaled / warpers.divisor(self, logits.dtype)
        scaled = warpers.keep(scaled, warpers.threshold(self, scaled))
        next_log_probs = scaled - jnp.log(row_sum(jnp.exp(scaled)))[..., None]
        certain = one_hot_log(argmax(logits), logits.shape[-1]).astype(next_log_probs.dtype)
        return jnp.where(warpers.drawn(self, logits.dtype), next_log_probs, certain)


def _keep_tuple(policy: Greedy | Sampling) -> None:
    """Converts processors passed as a list to a tuple, so that equal policies have one structure."""
    if isinstance(policy.processors, list | Processor):
        object.__setattr__(policy, "processors", as_tuple(policy.processors))


def best_log_prob(policy: Greedy | Sampling, logits: Float[Array, "b t v"]) -> Float[Array, "b t"]:
    """Computes the log-probability of the most likely token among all: before top-k, top-p and min-p.

    That token is never excluded, so its log-probability minus that under `policy.log_probs` is the log of the mass
    that the policy keeps. Temperature 0 counts as 1.

    Args:
      policy: the sampling policy.
      logits: the logits, after processors.

    Example:
        >>> policy, logits = jaxspec.Sampling(top_k=1), jnp.log(jnp.asarray([[[0.25, 0.75]]]))
        >>> jnp.exp(jaxspec.core.sampling.best_log_prob(policy, logits)).round(2).tolist()
        [[0.75]]
    """
    logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
    scaled = logits - jnp.max(logits, axis=-1, keepdims=True)
    if isinstance(policy, Sampling):
        scaled = scaled / warpers.divisor(policy, logits.dtype)
    return -native_sampling.log_sum_exp(scaled)


def spread(policy: Policy, batch: int) -> Policy:
    """Broadcasts the values of a policy and of its processors to one per row, if they may differ by row."""
    processors = tuple(one.spread(batch) if one.by_row else one for one in processors_of(policy))
    return with_processors(policy.spread(batch) if isinstance(policy, Sampling) else policy, processors)


def draw(
    policy: Policy,
    logits: Float[Array, "b t n"],
    rng: Rng,
    offsets: Int[Array, "t"],
    vocab_size: int,
    ids: Int[Array, "n"] | None = None,
) -> tuple[Int[Array, "b t"], Float[Array, "b t n"]]:
    """Draws a draft at each of several offsets.

    Args:
      policy: the sampling policy; not greedy.
      logits: the logits, `[b, t, n]`.
      rng: the round's source of randomness; see `RoundKeys.draft_noise`, also for the following arguments.
      offsets: the offset of each draft.
      vocab_size: the number of tokens.
      ids: the tokens that may be drawn, int32; `None` is all.

    Returns:
      The tokens as indices into the logits, int32, and `policy.log_probs(logits)`.

    Example:
        >>> rng = jaxspec.core.RoundKeys(jaxspec.core.row_keys(key, batch=1), jnp.asarray([5], jnp.int32))
        >>> policy, logits = jaxspec.Sampling(), jnp.asarray([[[0.0, 99.0]]])
        >>> jaxspec.core.sampling.draw(policy, logits, rng, jnp.asarray([0], jnp.int32), vocab_size=2)[0].tolist()
        [[1]]
    """
    if type(policy) is Sampling and parts_of(logits) > 1:
        return split_sampling.draw(policy, logits, drafts_noise(rng, offsets, vocab_size, ids))
    log_probs = policy.log_probs(logits)
    if not isinstance(rng, Rng):  # a custom verifier's draws may have noise alone
        return argmax(log_probs + drafts_noise(rng, offsets, vocab_size, ids)), log_probs
    return rng.draft_tokens(log_probs, offsets, vocab_size, ids), log_probs


@typed("tokens", vocab_size=(1, 2**31 - 1))
def one_hot_log(tokens: Int[Array, "*b"], vocab_size: int) -> Float[Array, "*b {vocab_size}"]:
    """Returns the log-probabilities of the one-hot distributions on `tokens`: 0 there, -inf elsewhere.

    Example:
        >>> jaxspec.core.one_hot_log(jnp.asarray([2]), vocab_size=3).tolist()
        [[-inf, -inf, 0.0]]
    """
    ids = jnp.arange(vocab_size, dtype=tokens.dtype).reshape(*(1,) * tokens.ndim, vocab_size)
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)
