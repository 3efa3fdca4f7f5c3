"""Defines typical acceptance: accepts tokens that are plausible under the target."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import take_row
from jaxspec.core.tree import ancestors
from jaxspec.verifiers.relaxed import Choice, RelaxedRule, at_tokens, check_number, register_unchecked
from jaxspec.verifiers.tree_walk import DraftTree


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Typical(RelaxedRule):
    """Accepts draft `x` if `target(x) > min(epsilon, delta * exp(-entropy of target))`.

    A rule for `RelaxedVerifier`; depends neither on the draft's probability nor on chance. In a tree, the longest path
    of accepted nodes is taken; among equally long paths, the one most likely under the target. The token after it is
    sampled from the target's distribution. A token that the target excludes is never accepted; its argmax passes if
    `delta < 1`. In the paper the first token of a round is accepted without a test; here it is the last token of the
    previous round, so every round emits at least one.

    Attributes:
      epsilon: the threshold where the target's entropy is low, in (0, 1]; may be traced.
      delta: the fraction of the typical probability that a token must exceed, in (0, 1]; may be traced. The paper
        uses `delta = sqrt(epsilon)`.

    Raises:
      TypeError: if `epsilon` or `delta` is not a real scalar.
      ValueError: if one is out of range.

    Example:
        >>> verifier = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Typical(epsilon=0.2))
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, lossy=True, max_new_tokens=8)
        >>> generation = jaxspec.generate(target, jaxspec.NGramDrafter(k=2), prompt, **options)
        >>> generation.lossless, 0 <= generation.measured_total_variation <= 1
        (False, True)

    References:
      Medusa: Cai et al. (2024), arXiv:2401.10774, section 2.3.1.
    """

    epsilon: Float[Array, ""] | float = 0.09
    delta: Float[Array, ""] | float = 0.3

    trees: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("epsilon", "delta"):
            expected = "in (0, 1]; smaller accepts more"
            check_number("Typical", name, getattr(self, name), expected, lambda x: 0 < x <= 1)

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        return jnp.where(target > self.log_threshold(target)[..., None], draft, -jnp.inf)

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return jnp.where(at_tokens(target, tokens) > self.log_threshold(target), 0.0, -jnp.inf)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        return target

    def choose(self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Choice:
        rows = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
        before = tree.parents + 1
        likelihood = target_log_probs[rows, before, tree.tokens]
        threshold = jnp.take_along_axis(self.log_threshold(target_log_probs), before, axis=1)
        choice = longest_path(tree, tree.valid & (likelihood > threshold), likelihood)
        on_path = jnp.arange(tree.depth, dtype=jnp.int32)[None] < choice.accepted[:, None]
        accepted = jnp.take_along_axis(likelihood, choice.path, axis=1)
        deviation = jnp.where(on_path, -jnp.expm1(accepted), 0.0)
        return dataclasses.replace(choice, deviation=deviation)

    def log_threshold(self, target: Float[Array, "b n v"]) -> Float[Array, "b n"]:
        """Computes the threshold that a token's log-probability must exceed."""
        share = jnp.exp(target)
        entropy = -jnp.sum(jnp.where(share > 0, share * target, 0.0), axis=-1)
        log = lambda x: jnp.log(jnp.asarray(x, target.dtype))  # noqa: E731
        return jnp.minimum(log(self.epsilon), log(self.delta) - entropy)


def longest_path(tree: DraftTree, passed: Bool[Array, "b n"], log_probs: Float[Array, "b n"]) -> Choice:
    """Finds the longest path of nodes that all passed; among equally long paths, the one with the largest sum.

    Leaves the deviation at 0.
    """
    above = ancestors(tree.parents, tree.depth)
    complete = jnp.all(~above | passed[:, None], axis=2)
    depth = jnp.sum(above, axis=2, dtype=jnp.int32)
    total = jnp.sum(jnp.where(above & complete[..., None], log_probs[:, None], 0.0), axis=2)
    accepted = jnp.max(jnp.where(complete, depth, 0), axis=1)
    longest = complete & (depth == accepted[:, None])
    end = jnp.argmax(jnp.where(longest, total, -jnp.inf), axis=1).astype(jnp.int32)
    levels = jnp.arange(1, tree.depth + 1, dtype=jnp.int32)[None, :, None]
    path = jnp.argmax(take_row(above, end)[:, None] & (depth[:, None] == levels), axis=2).astype(jnp.int32)
    row = jnp.where(accepted > 0, end + 1, 0)
    return Choice(accepted, path, row, jnp.zeros(path.shape, log_probs.dtype))
