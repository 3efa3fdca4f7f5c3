"""Verifies i.i.d. candidates, each with the same scaled-down acceptance ratio: K-SEQ."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import first_true, take_row
from jaxspec.core.pytree import register_dataclass
from jaxspec.verifiers.base import DraftKind
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree_walk import DraftTree, TreeWalk, WalkResult, draft_log_probs, earlier


@register_dataclass
@dataclasses.dataclass(frozen=True)
class KSequence:
    """Accepts each of `m` candidates with `min(1, target / (rho * draft))`, else draws from the residual.

    A rule for `MultiDraftVerifier`. `rho` is the smallest factor that preserves the target's distribution: the root of

        1 - (1 - beta)^m = rho * beta,    beta = sum over v of min(draft(v), target(v) / rho)

    found by bisection for each row and position. Candidates must be independent draws from one distribution.
    Those that match the accepted text compete for the next position, and are still independent.

    Example:
        >>> drafter = jaxspec.ModelDrafter(draft, k=2, num_drafts=2, distinct=False)
        >>> verifier = jaxspec.verifiers.MultiDraftVerifier(jaxspec.verifiers.KSequence())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 4)

    References:
      SpecTr: Sun et al. (2023), arXiv:2310.15141, algorithm 2 (K-SEQ) and section 5 (sequences).
    """

    def check(self, drafter: DraftKind) -> None:
        """Raises `ValueError` unless `drafter` draws its chains independently from one distribution."""
        if drafter.tree and not drafter.info.identically_distributed:
            raise ValueError(
                f"KSequence needs independent drafts from one distribution, got {type(drafter).__name__}, whose drafts "
                "are not; pass ModelDrafter(model, num_drafts=m, distinct=False), or verify with "
                "MultiDraftVerifier(RecursiveRejection())"
            )

    def descend(
        self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
    ) -> WalkResult:
        """Walks down the tree, accepting nodes by `uniforms`, one per node. Pure."""
        walk, place = TreeWalk.start(tree), _Place.none(tree, target_log_probs)
        thresholds, tested = jnp.zeros_like(uniforms), jnp.zeros(uniforms.shape, jnp.bool_)
        for _ in range(tree.depth):
            found = walk.candidates(tree) & walk.going[:, None]
            place = place.entered(tree, target_log_probs, walk, found)
            log_accept = place.log_acceptance(tree, target_log_probs)
            passed = found & (jnp.log(uniforms) < log_accept)
            looked_at = found & ~earlier(passed)
            thresholds = jnp.where(looked_at, jnp.exp(log_accept), thresholds)
            tested = tested | looked_at
            walk = walk.advance(tree, passed & looked_at)
        return walk.result(_next_log_probs(walk, place, tree, target_log_probs), thresholds, tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Place:
    """Holds the position that candidates compete for: the target's row, a candidate, their number, and `log rho`."""

    row: Int[Array, "b"]
    node: Int[Array, "b"]
    count: Int[Array, "b"]
    log_rho: Float[Array, "b"]

    @classmethod
    def none(cls, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Self:
        zero = jnp.zeros(tree.tokens.shape[0], jnp.int32)
        return cls(zero, zero, zero, zero.astype(target_log_probs.dtype))

    def entered(
        self,
        tree: DraftTree,
        target_log_probs: Float[Array, "b n_plus_1 v"],
        walk: TreeWalk,
        found: Bool[Array, "b n"],
    ) -> Self:
        """Returns the walk's current position; rows whose walk has ended keep their last one."""
        here = walk.going
        count = jnp.sum(found, axis=1, dtype=jnp.int32)
        row, node = jnp.where(here, walk.row(), self.row), jnp.where(here, first_true(found), self.node)
        log_rho = jax.lax.cond(
            jnp.any(count > 1),
            lambda: log_factor(take_row(target_log_probs, row), take_row(draft_log_probs(tree), node), count),
            lambda: jnp.zeros_like(self.log_rho),
        )
        count, log_rho = jnp.where(here, count, self.count), jnp.where(here, log_rho, self.log_rho)
        return dataclasses.replace(self, row=row, node=node, count=count, log_rho=log_rho)

    def log_acceptance(self, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Float[Array, "b n"]:
        """Computes the log-probability of accepting each node as a candidate at this position."""
        batch = jnp.arange(tree.tokens.shape[0], dtype=jnp.int32)[:, None]
        at = lambda log_probs, index: log_probs[batch, index[:, None], tree.tokens]  # noqa: E731
        ratio = at(target_log_probs, self.row) - at(draft_log_probs(tree), self.node)
        return jnp.minimum(ratio - self.log_rho[:, None], 0.0)


def _next_log_probs(
    walk: TreeWalk, place: _Place, tree: DraftTree, target_log_probs: Float[Array, "b n_plus_1 v"]
) -> Float[Array, "b v"]:
    """Returns the residual where the last position rejected all candidates, else the target's log-probabilities."""
    target, draft = take_row(target_log_probs, place.row), take_row(draft_log_probs(tree), place.node)
    log_rho = place.log_rho[:, None]
    accepted = jnp.minimum(draft, target - log_rho)
    count = place.count[:, None].astype(target.dtype)
    log_beta = jnp.minimum(jax.nn.logsumexp(accepted, axis=1, keepdims=True), 0.0)
    residual = log_residual(target, accepted + _log_share(log_beta, count))
    rejected = ~walk.going & (place.count > 0) & (jnp.max(residual, axis=1) > -jnp.inf)
    return jnp.where(rejected[:, None], residual, walk.log_probs(target_log_probs))


def log_factor(target: Float[Array, "b v"], draft: Float[Array, "b v"], count: Int[Array, "b"]) -> Float[Array, "b"]:
    """Computes `log rho` for `count` candidates, rounded up so that no residual is negative."""
    target, draft = jnp.exp(target), jnp.exp(draft)
    m = jnp.maximum(count, 1)[:, None].astype(target.dtype)
    # If the distributions are equal, both sides are equal at rho = 1, which rounding would hide.
    rounding = 1 + 8 * jnp.finfo(target.dtype).eps

    def enough(rho: Float[Array, "b one"]) -> Bool[Array, "b one"]:
        beta = jnp.sum(jnp.minimum(draft, target / rho), axis=1, keepdims=True)
        return -jnp.expm1(m * jnp.log1p(-jnp.minimum(beta, 1.0))) <= rho * beta * rounding

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        found = enough(middle)
        return jnp.where(found, low, middle), jnp.where(found, middle, high)

    least = jnp.ones_like(m)
    halvings = jnp.finfo(target.dtype).nmant + 2  # down to the dtype's resolution
    _, high = jax.lax.fori_loop(0, halvings, halve, (least, m))
    return jnp.log(jnp.where(enough(least), least, high))[:, 0]


def _log_share(log_beta: Float[Array, "b one"], count: Float[Array, "b one"]) -> Float[Array, "b one"]:
    """Computes `log((1 - (1 - beta)^m) / beta)`: the acceptance of `m` candidates relative to one."""
    beta = jnp.exp(log_beta)
    delivered = -jnp.expm1(count * jnp.log1p(-beta))
    return jnp.where(beta > 0, jnp.log(delivered) - log_beta, jnp.log(count))
