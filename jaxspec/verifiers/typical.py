"""Typical acceptance: whatever the target might plausibly have said is kept."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.rows import take_row
from jaxspec.core.state import Proposal
from jaxspec.core.tree import ancestors
from jaxspec.verifiers.relaxed import Choice, RelaxedRule, at_tokens, check_number, register_unchecked


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Typical(RelaxedRule):
    """Accept draft `x` if `target(x) > min(epsilon, delta * exp(-entropy of target))`.

    The draft's probability plays no part, and neither does chance. Of a tree the longest path of
    accepted nodes is kept, of equally long ones the one that is most likely under the target, and
    the token after it is drawn from the target's distribution. A token that the target excludes is never
    accepted; its most likely token passes if `delta < 1`. Cai et al. 2401.10774 (Medusa), section
    2.3.1. There the first token of a round is kept without a test; here it is the last token of
    the round before, so every round emits at least one.

    Attributes:
      epsilon: the threshold where the target is sure, in (0, 1], traced.
      delta: how far below its typical probability a token may lie, in (0, 1], traced. The paper
        has `delta = sqrt(epsilon)`.

    Raises:
      TypeError: if one is not one number.
      ValueError: if one is out of range.
    """

    epsilon: Float[Array, ""] | float = 0.09
    delta: Float[Array, ""] | float = 0.3

    trees = True

    def __post_init__(self):
        for name in ("epsilon", "delta"):
            expected = "in (0, 1]; smaller accepts more"
            check_number("Typical", name, getattr(self, name), expected, lambda x: 0 < x <= 1)

    def log_accepted(self, target, draft):
        return jnp.where(target > self.log_threshold(target)[..., None], draft, -jnp.inf)

    def log_acceptance(self, target, tokens):
        return jnp.where(at_tokens(target, tokens) > self.log_threshold(target), 0.0, -jnp.inf)

    def log_rest(self, target, token):
        return target

    def choose(self, tree: Proposal, target_log_probs) -> Choice:
        rows = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
        before = tree.parents + 1
        likelihood = target_log_probs[rows, before, tree.tokens]
        threshold = jnp.take_along_axis(self.log_threshold(target_log_probs), before, axis=1)
        choice = longest_path(tree, tree.valid & (likelihood > threshold), likelihood)
        on_path = jnp.arange(tree.depth, dtype=jnp.int32)[None] < choice.accepted[:, None]
        kept = jnp.take_along_axis(likelihood, choice.path, axis=1)
        deviation = jnp.where(on_path, -jnp.expm1(kept), 0.0)
        return dataclasses.replace(choice, deviation=deviation)

    def log_threshold(self, target: Float[Array, "b n v"]) -> Float[Array, "b n"]:
        """What the log-probability of a token must exceed."""
        share = jnp.exp(target)
        entropy = -jnp.sum(jnp.where(share > 0, share * target, 0.0), axis=-1)
        log = lambda x: jnp.log(jnp.asarray(x, target.dtype))  # noqa: E731
        return jnp.minimum(log(self.epsilon), log(self.delta) - entropy)


def longest_path(tree: Proposal, passed: Bool[Array, "b n"], log_probs: Float[Array, "b n"]) -> Choice:
    """The longest path of nodes that all passed; of equally long ones that of the largest sum.

    The deviation is left at 0.
    """
    above = ancestors(tree.parents, tree.depth)
    whole = jnp.all(~above | passed[:, None], axis=2)
    depth: Int[Array, "b n"] = jnp.sum(above, axis=2, dtype=jnp.int32)
    total = jnp.sum(jnp.where(above & whole[..., None], log_probs[:, None], 0.0), axis=2)
    accepted = jnp.max(jnp.where(whole, depth, 0), axis=1)
    longest = whole & (depth == accepted[:, None])
    end = jnp.argmax(jnp.where(longest, total, -jnp.inf), axis=1).astype(jnp.int32)
    levels = jnp.arange(1, tree.depth + 1, dtype=jnp.int32)[None, :, None]
    path = jnp.argmax(take_row(above, end)[:, None] & (depth[:, None] == levels), axis=2).astype(jnp.int32)
    row = jnp.where(accepted > 0, end + 1, 0)
    return Choice(accepted, path, row, jnp.zeros(path.shape, log_probs.dtype))
