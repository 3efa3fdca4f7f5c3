"""Samples from a vocabulary that is split over devices: what each finds in its part is sent once.

A device takes its logits relative to the maximum of its own part, so that the sum of exponentials and the draw need not
wait for the maximum of all. Only warpers do, which compare with it.
"""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import warpers
from jaxspec.core.argmax import leaders, leaders_of
from jaxspec.core.parts import cut, exchange, find, highest
from jaxspec.core.sums import exponentials, finite, joined
from jaxspec.core.warpers import Warpers


@dataclasses.dataclass(frozen=True)
class Settled:
    """Holds what all devices know of distributions: with it each computes the log-probability of any token.

    Attributes:
      policy: how they are warped.
      most: the highest logit.
      log_total: the logarithm of the sum of exponentials that stay, relative to it.
      certain: the token with the highest logit, the first of equals.
      threshold: the lowest scaled logit that stays; `None` where all do.
    """

    policy: Warpers
    most: Float[Array, "b t"]
    log_total: Float[Array, "b t"]
    certain: Int[Array, "b t"]
    threshold: Float[Array, "_ _ 1"] | None

    def before_last(self) -> Self:
        """Returns what is known of all positions but the last."""
        cut = lambda x: x if x is None or x.shape[1] == 1 else x[:, :-1]  # noqa: E731
        parts = (self.most[:, :-1], self.log_total[:, :-1], self.certain[:, :-1], cut(self.threshold))
        return type(self)(self.policy, *parts)

    def log_probs(self, logits: Float[Array, "b t n"], tokens: Int[Array, "#b #t n"]) -> Float[Array, "b t n"]:
        """Returns the log-probabilities of tokens with these logits."""
        scaled = (logits - self.most[..., None]) / warpers.divisor(self.policy, logits.dtype)
        if self.threshold is not None:
            scaled = warpers.keep(scaled, self.threshold)
        one_hot = jnp.where(tokens == self.certain[..., None], jnp.zeros((), scaled.dtype), -jnp.inf)
        return jnp.where(warpers.drawn(self.policy, logits.dtype), scaled - self.log_total[..., None], one_hot)

    def of_all(self, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
        """Returns the log-probabilities of all tokens."""
        return self.log_probs(logits, jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None])


@dataclasses.dataclass(frozen=True)
class Local:
    """Holds what each device finds in its part of the logits.

    Attributes:
      policy: how they are warped.
      logits: all of them.
      scaled: part by part, over the temperature, relative to `reference`; -inf where they do not stay.
      reference: the logit that they are relative to: the part's highest, or that of all.
      threshold: as in `Settled`.
    """

    policy: Warpers
    logits: Float[Array, "b t v"]
    scaled: Float[Array, "b t n w"]
    reference: Float[Array, "b t n"] | Float[Array, "b t 1"]
    threshold: Float[Array, "_ _ 1"] | None

    @classmethod
    def of(cls, policy: Warpers, logits: Float[Array, "b t v"]) -> Self:
        """Returns what is found before any exchange but those that warpers need."""
        most, divisor = jnp.max(cut(logits), axis=-1), warpers.divisor(policy, logits.dtype)
        if not warpers.are_any(policy):
            reference = finite(most)
            scaled = (cut(logits) - reference[..., None]) / divisor[..., None]
            return cls(policy, logits, scaled, reference, None)
        reference = jnp.max(*exchange(most), axis=-1, keepdims=True)
        scaled = (logits - reference) / divisor
        threshold = warpers.threshold(policy, scaled)
        return cls(policy, logits, cut(warpers.keep(scaled, threshold)), reference, threshold)

    def found(self) -> tuple[Array, ...]:
        """Returns what is to be exchanged for `settle`."""
        return *leaders(self.logits), jnp.sum(jnp.exp(self.scaled), axis=-1)

    def settle(self, most: Array, best: Array, total: Array) -> Settled:
        """Returns what all devices know after the exchange of `found`."""
        certain = highest(most, best)
        if self.threshold is None:
            of_all, total = joined(most, total, warpers.divisor(self.policy, self.logits.dtype))
        else:
            of_all, total = self.reference[..., 0], jnp.sum(total, axis=-1)
        return Settled(self.policy, of_all, jnp.log(total), certain, self.threshold)


def log_probs(policy: Warpers, logits: Float[Array, "b t v"]) -> Float[Array, "b t v"]:
    """Returns the normalized log-probabilities."""
    local = Local.of(policy, logits)
    return local.settle(*exchange(*local.found())).of_all(logits)


def draw(
    policy: Warpers, logits: Float[Array, "b t v"], noise: Float[Array, "b t v"]
) -> tuple[Int[Array, "b t"], Float[Array, "b t v"]]:
    """Returns the tokens that Gumbel noise draws, and the log-probabilities of all."""
    local = Local.of(policy, logits)
    scores, tokens = leaders_of(local.scaled + cut(noise))
    scores, tokens, most, *rest = exchange(scores, tokens, *local.found())
    settled = local.settle(most, *rest)
    if local.threshold is None:
        scores = scores + (finite(most) - settled.most[..., None]) / warpers.divisor(policy, logits.dtype)
    drawn = jnp.where(warpers.drawn(policy, logits.dtype)[..., 0], highest(scores, tokens), settled.certain)
    return drawn, settled.of_all(logits)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Holds what verification needs of the target's distributions over a chain of drafts.

    Attributes:
      log_probs: of all tokens, warped.
      normalizer: the logarithm of the logits' sum of exponentials.
      logits: of each draft, before warping.
      target: the log-probability of each draft, warped.
      draft: what it was drawn with.
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
        """Computes it, with one exchange beside those that warpers need.

        Args:
          policy: how logits are warped.
          logits: row 0 after the committed text, row `i + 1` after draft `i`.
          tokens: the drafts.
          draft_log_probs: what they were drawn from, if they were.
        """
        local = Local.of(policy, logits)
        looked_up = (logits[:, :-1],) if draft_log_probs is None else (logits[:, :-1], draft_log_probs)
        own = jnp.concatenate([find(one, tokens[..., None]) for one in looked_up], axis=1)
        own, most, total, *rest = exchange(own, *exponentials(cut(logits)), *local.found())
        settled, (most, total) = local.settle(*rest), joined(most, total)
        target, *draft = jnp.split(jnp.max(own, axis=-1), len(looked_up), axis=1)
        warped = settled.before_last().log_probs(target[..., None], tokens[..., None])[..., 0]
        return cls(settled.of_all(logits), most + jnp.log(total), target, warped, *draft or (None,))
