"""Samples from a vocabulary that is split over devices, whose partial results are exchanged once.

A device subtracts the maximum of its own part from its logits, so that the sum of exponentials and the draw need not
wait for the global maximum. Only warpers wait, which compare with it.
"""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import warpers
from jaxspec.core.parts import argmax_of_parts, cut, exchange, find, highest, shard_argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import exponentials, finite, merge_lse
from jaxspec.core.warpers import Warpers


@dataclasses.dataclass(frozen=True)
class GlobalStats:
    """Holds global statistics of distributions, from which each device computes the log-probability of any token.

    Attributes:
      policy: the warpers.
      max_logit: the highest logit.
      log_total: the logarithm of the sum of the kept exponentials, relative to it.
      argmax: the token with the highest logit, the first in a tie, int32.
      threshold: the lowest scaled logit that is kept; `None` if all are.
    """

    policy: Warpers
    max_logit: Float[Array, "b t"]
    log_total: Float[Array, "b t"]
    argmax: Int[Array, "b t"]
    threshold: Float[Array, "_ _ 1"] | None

    def before_last(self) -> Self:
        """Drops the last position."""
        cut = lambda x: x if x is None or x.shape[1] == 1 else x[:, :-1]  # noqa: E731
        parts = (self.max_logit[:, :-1], self.log_total[:, :-1], self.argmax[:, :-1], cut(self.threshold))
        return type(self)(self.policy, *parts)

    def log_probs(self, logits: Float[Array, "b t n"], tokens: Int[Array, "#b #t n"]) -> Float[Array, "b t n"]:
        """Returns the log-probabilities of tokens, given their logits."""
        scaled = (logits - self.max_logit[..., None]) / warpers.divisor(self.policy, logits.dtype)
        if self.threshold is not None:
            scaled = warpers.keep(scaled, self.threshold)
        one_hot = jnp.where(tokens == self.argmax[..., None], jnp.zeros((), scaled.dtype), -jnp.inf)
        return jnp.where(warpers.drawn(self.policy, logits.dtype), scaled - self.log_total[..., None], one_hot)

    def all_log_probs(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the log-probabilities of all tokens."""
        return self.log_probs(logits, jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None])


@dataclasses.dataclass(frozen=True)
class ShardStats:
    """Holds each device's statistics of its part of the logits.

    Attributes:
      policy: the warpers.
      logits: the logits of all parts.
      scaled: the logits by part, relative to `reference` and divided by the temperature; -inf if excluded.
      reference: the subtracted logit: the highest of each part, or of all parts.
      threshold: as in `GlobalStats`.
    """

    policy: Warpers
    logits: Float[Array, "b t v"]
    scaled: Float[Array, "b t n w"]
    reference: Float[Array, "b t n"] | Float[Array, "b t 1"]
    threshold: Float[Array, "_ _ 1"] | None

    @classmethod
    def of(cls, policy: Warpers, logits: Float[Array, "b t v"]) -> Self:
        """Computes them without any exchange but those of warpers."""
        most, divisor = jnp.max(cut(logits), axis=-1), warpers.divisor(policy, logits.dtype)
        if not warpers.are_any(policy):
            reference = finite(most)
            scaled = (cut(logits) - reference[..., None]) / divisor[..., None]
            return cls(policy, logits, scaled, reference, None)
        reference = jnp.max(*exchange(most), axis=-1, keepdims=True)
        scaled = (logits - reference) / divisor
        threshold = warpers.threshold(policy, scaled)
        return cls(policy, logits, cut(warpers.keep(scaled, threshold)), reference, threshold)

    def partials(self) -> tuple[Array, ...]:
        """Returns the arrays to exchange for `reduce`."""
        return *shard_argmax(self.logits), jnp.sum(jnp.exp(self.scaled), axis=-1)

    def reduce(self, most: Array, best: Array, total: Array) -> GlobalStats:
        """Combines the exchanged `partials`."""
        argmax = highest(most, best)
        if self.threshold is None:
            max_logit, total = merge_lse(most, total, warpers.divisor(self.policy, self.logits.dtype))
        else:
            max_logit, total = self.reference[..., 0], jnp.sum(total, axis=-1)
        return GlobalStats(self.policy, max_logit, jnp.log(total), argmax, self.threshold)


def log_probs(policy: Warpers, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
    """Returns the normalized log-probabilities."""
    shards = ShardStats.of(policy, logits)
    return shards.reduce(*exchange(*shards.partials())).all_log_probs(logits)


def draw(
    policy: Warpers, logits: Float[Array, "b t v"], noise: Float[Array, "b t v"]
) -> tuple[Int[Array, "b t"], Float[Array, "b t v"]]:
    """Draws tokens with Gumbel noise; returns them and the log-probabilities of all tokens."""
    shards = ShardStats.of(policy, logits)
    scores, tokens = argmax_of_parts(shards.scaled + cut(noise))
    scores, tokens, most, *rest = exchange(scores, tokens, *shards.partials())
    stats = shards.reduce(most, *rest)
    if shards.threshold is None:
        scores = scores + (finite(most) - stats.max_logit[..., None]) / warpers.divisor(policy, logits.dtype)
    drawn = jnp.where(warpers.drawn(policy, logits.dtype)[..., 0], highest(scores, tokens), stats.argmax)
    return drawn, stats.all_log_probs(logits)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Holds the log-probabilities that verification reads, over a chain of drafts.

    Attributes:
      log_probs: the target's warped log-probabilities of all tokens.
      normalizer: the log-sum-exp of the target's logits.
      logits: the target's logit of each draft, before warping.
      target: the target's warped log-probability of each draft.
      draft: the log-probability that each draft was drawn with.
    """

    log_probs: Float[Array, "b n_plus_1 v"]
    normalizer: Float[Array, "b n_plus_1"]
    logits: Float[Array, "b n"]
    target: Float[Array, "b n"]
    draft: Float[Array, "b n"] | None

    @classmethod
    def of(
        cls,
        policy: Warpers,
        logits: Float[Array, "b n_plus_1 v"],
        tokens: Int[Array, "b n"],
        draft_log_probs: Float[Array, "b n v"] | None,
    ) -> Self:
        """Computes them with one exchange, besides those of warpers.

        Args:
          policy: the warpers.
          logits: the target's logits; position 0 is after the committed text, `i + 1` after draft `i`.
          tokens: the drafts, int32.
          draft_log_probs: the distributions that they were drawn from; `None` if deterministic.
        """
        shards = ShardStats.of(policy, logits)
        looked_up = (logits[:, :-1],) if draft_log_probs is None else (logits[:, :-1], draft_log_probs)
        own = jnp.concatenate([find(one, tokens[..., None]) for one in looked_up], axis=1)
        own, most, total, *rest = exchange(own, *exponentials(cut(logits)), *shards.partials())
        stats, (most, total) = shards.reduce(*rest), merge_lse(most, total)
        target, *draft = jnp.split(jnp.max(own, axis=-1), len(looked_up), axis=1)
        warped = stats.before_last().log_probs(target[..., None], tokens[..., None])[..., 0]
        return cls(stats.all_log_probs(logits), most + jnp.log(total), target, warped, *draft or (None,))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AtDrafts:
    """Holds a chain's log-probabilities at its drafts, which a round on a mesh looks up along with the normalizers.

    Attributes:
      target: the target's log-probability of each draft, given those before it.
      draft: the log-probabilities that the drafts were drawn with; `None` if deterministic.
      logits: the target's logits, to look up the next token when it is drawn.

    Example:
        >>> from jaxspec.core.split_sampling import AtDrafts
        >>> AtDrafts(target=jnp.zeros((2, 3)), draft=None, logits=jnp.zeros((2, 4, 310))).target.shape
        (2, 3)
    """

    target: Float[Array, "b n"]
    draft: Float[Array, "b n"] | None
    logits: Float[Array, "b n_plus_1 v"]
