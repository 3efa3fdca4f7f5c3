"""Chooses the children of a drafted node: the most probable tokens, samples with or without replacement, or both."""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.drafters.frontier import top_tokens


class Draw(abc.ABC):
    """Chooses the children of nodes. Frozen and static.

    Attributes:
      deterministic: whether children are a function of the text, so that no distribution is reported for them.
    """

    deterministic: ClassVar[bool] = False

    def weights(self, policy: Policy, logits: Float[Array, "b w v"]) -> Float[Array, "b w v"]:
        """Returns the weights to choose the children of `w` nodes by: the policy's log-probabilities."""
        return policy.log_probs(logits)

    @abc.abstractmethod
    def children(
        self, rng: Rng, level: Int[Array, ""], weights: Float[Array, "b w v"], count: int, counts: Int[Array, "w"]
    ) -> tuple[Int[Array, "b w c"], Bool[Array, "b w c"]]:
        """Chooses `count` children for each of `w` nodes.

        Noise is independent for different nodes of a round, within a level and across levels.

        Args:
          rng: the round's random numbers.
          level: the number of drafted tokens above the children.
          weights: the result of `weights`.
          count: the number of children of each node.
          counts: how many of them the tree keeps, the first ones.

        Returns:
          The children's tokens, best first, and which of them exist.
        """

    def log_probs(
        self,
        parent: Float[Array, "b n v"],
        before: Int[Array, "b n s"],
        tokens: Int[Array, "b n"],
        last: Bool[np.ndarray, "n"],
    ) -> Float[Array, "b n v"]:
        """Returns the normalized distribution that each node was drawn from.

        Args:
          parent: log-probabilities of its parent.
          before: tokens of its earlier siblings, padded with -1.
          tokens: the nodes' tokens.
          last: whether each node is its parent's last child.
        """
        del before, tokens, last
        return parent


@dataclasses.dataclass(frozen=True)
class MostLikely(Draw):
    """Takes the most probable tokens in order, so that the child of rank 0 is the draft's top-1 token.

    These guesses are deterministic: they need no distribution, and are accepted with the probability that the target
    gives them. They ignore the noise that `CoupledVerifier` shares, with which `WithoutReplacement` is accepted more.

    References:
      EAGLE-1: Li et al. (2024), arXiv:2401.15077.

    Example:
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)), jaxspec.drafters.MostLikely())
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    deterministic: ClassVar[bool] = True

    def weights(self, policy: Policy, logits: Float[Array, "b w v"]) -> Float[Array, "b w v"]:
        del policy
        return logits

    def children(self, rng, level, weights, count, counts):
        best, tokens = top_tokens(weights, count)
        return tokens, best > -jnp.inf


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Draw):
    """Draws distinct tokens without replacement from the parent's distribution (Gumbel-top-k).

    All are drawn at once: the largest sums of log-probability and Gumbel noise, in decreasing order. If fewer tokens
    have nonzero probability, the remaining children do not exist. With the noise that `CoupledVerifier` shares, these
    are the tokens that the target's own noise ranks first.

    References:
      Kool et al. (2019), arXiv:1903.06059 (Gumbel-top-k).
      RSD: Jeon et al. (2024), arXiv:2402.14160, section 3.

    Example:
      >>> draw = jaxspec.drafters.WithoutReplacement()
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)), draw)
      >>> warm = jaxspec.Sampling(temperature=1.0)
      >>> jaxspec.generate(target, drafter, prompt, key=key, sampling=warm, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    def children(self, rng, level, weights, count, counts):
        _, width, vocab = weights.shape
        noise = jnp.stack([rng.of_draft(slot).draft_noise(level, vocab) for slot in range(width)], axis=1)
        best, tokens = top_tokens(weights + noise, count)
        return tokens, best > -jnp.inf

    def log_probs(self, parent, before, tokens, last):
        left = _without(parent, before)
        total = jax.nn.logsumexp(left, axis=-1, keepdims=True)
        # A child that does not exist gets its parent's distribution, so that every row stays normalized.
        return jnp.where(total > -jnp.inf, left - total, parent)


@dataclasses.dataclass(frozen=True)
class WithReplacement(Draw):
    """Draws independently from the parent's distribution, so that siblings can be equal.

    With the noise that `CoupledVerifier` shares, siblings are always equal: pass `WithoutReplacement` there.

    References:
      SpecTr: Sun et al. (2023), arXiv:2310.15141, section 4.

    Example:
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.chains(2, 2), jaxspec.drafters.WithReplacement())
      >>> warm = jaxspec.Sampling(temperature=1.0)
      >>> jaxspec.generate(target, drafter, prompt, key=key, sampling=warm, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    def children(self, rng, level, weights, count, counts):
        batch, width, vocab = weights.shape
        noise = [rng.of_draft(slot).draft_noise(level, vocab) for slot in range(width * count)]
        _, tokens = top_tokens(jnp.repeat(weights, count, axis=1) + jnp.stack(noise, axis=1), 1)
        return tokens.reshape(batch, width, count), jnp.ones((batch, width, count), jnp.bool_)


@dataclasses.dataclass(frozen=True)
class TopAndSampled(WithoutReplacement):
    """Takes the most probable tokens, and draws a node's last child from what remains.

    An only child is drawn from the parent's whole distribution, so a path of only children is a sampled chain. Use
    `UniVerVerifier`: it accepts a top token with the target's probability of it, and the sampled token as speculative
    sampling does. Where all mass is on the top tokens, the last child does not exist. For trees whose branches are
    about equally deep: in a tree with one long path, `WithoutReplacement` is accepted more often.

    References:
      UniVer (2026), arXiv:2605.04543.

    Example:
      >>> draw = jaxspec.drafters.TopAndSampled()
      >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.balanced((2, 2)), draw)
      >>> options = dict(sampling=jaxspec.Sampling(), verifier=jaxspec.verifiers.UniVerVerifier())
      >>> jaxspec.generate(target, drafter, prompt, key=key, max_new_tokens=8, **options).tokens.shape
      (2, 8)
    """

    def children(self, rng, level, weights, count, counts):
        best, tokens = top_tokens(weights, count)
        certain = jnp.arange(count, dtype=jnp.int32)[None, None] < counts[None, :, None] - 1
        rest = _without(weights, jnp.where(certain, tokens, -1)[..., : count - 1])
        sampled, some = super().children(rng, level, rest, 1, counts)
        return jnp.where(certain, tokens, sampled), jnp.where(certain, best > -jnp.inf, some)

    def log_probs(self, parent, before, tokens, last):
        ids = jnp.arange(parent.shape[-1], dtype=jnp.int32)[None, None]
        certain = jnp.where(ids == tokens[..., None], 0.0, -jnp.inf)
        return jnp.where(last[None, :, None], super().log_probs(parent, before, tokens, last), certain)


def _without(log_probs: Float[Array, "b n v"], tokens: Int[Array, "b n s"]) -> Float[Array, "b n v"]:
    """Excludes each node's `tokens`, padded with -1, one comparison each: a scatter would gather a split vocabulary."""
    ids = jnp.arange(log_probs.shape[-1], dtype=jnp.int32)[None, None]
    for place in range(tokens.shape[-1]):
        log_probs = jnp.where(ids == tokens[:, :, place : place + 1], -jnp.inf, log_probs)
    return log_probs
