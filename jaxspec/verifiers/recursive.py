"""Recursive rejection sampling: what the target still wants after each refused candidate."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import first_true, take_row
from jaxspec.core.state import Proposal
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.tree_walk import TreeWalk, WalkResult


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RecursiveRejection:
    """Candidate after candidate: accept with `min(1, wanted / draft)`, else want the residual.

    What is wanted at first is the target's distribution; after a candidate is refused, the normalized
    positive part of `wanted - draft`, where `draft` is the distribution that this candidate was drawn
    from given those before it. So candidates may be drawn with replacement (Miao et al.
    2305.09781, multi-step speculative sampling), without (Jeon et al. 2402.14160, algorithm 2;
    in the order of Gumbel top-k), or by different models.
    """

    def check(self, drafter) -> None:
        """Takes any drafter."""

    def descend(
        self, tree: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
    ) -> WalkResult:
        """The walk down the tree that `uniforms`, one a node, lead to."""
        state = jax.lax.while_loop(
            lambda state: jnp.any(state.walk.going),
            lambda state: _try_next(state, tree, target_log_probs, uniforms),
            _Search.start(tree, target_log_probs),
        )
        return state.walk.descent(state.wanted, state.thresholds, state.tested)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
    """A walk, the log-probabilities still wanted where it stands, and what each tested node was accepted with."""

    walk: TreeWalk
    wanted: Float[Array, "b v"]
    tested: Bool[Array, "b n"]
    thresholds: Float[Array, "b n"]

    @classmethod
    def start(cls, tree: Proposal, target_log_probs) -> "_Search":
        walk = TreeWalk.start(tree)
        walk = dataclasses.replace(walk, going=jnp.any(walk.candidates(tree), axis=1))
        nothing = jnp.zeros(tree.tokens.shape, target_log_probs.dtype)
        return cls(walk, walk.log_probs(target_log_probs), nothing > 0, nothing)


def _try_next(state: _Search, tree: Proposal, target_log_probs, uniforms) -> _Search:
    walk = state.walk
    node = first_true(walk.candidates(tree) & ~state.tested)
    here = walk.going[:, None] & (jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)[None] == node[:, None])
    draft, token = take_row(tree.log_probs, node), take_row(tree.tokens, node)[:, None]
    at = lambda log_probs: jnp.take_along_axis(log_probs, token, axis=1)[:, 0]  # noqa: E731
    log_accept = jnp.minimum(at(state.wanted) - at(draft), 0.0)
    # Strict, so that what is not wanted at all is never accepted.
    accept = walk.going & (jnp.log(take_row(uniforms, node)) < log_accept)
    refuse = walk.going & ~accept
    tested = state.tested | here
    walk = walk.move(tree, here & accept[:, None], walk.going)
    walk = dataclasses.replace(walk, going=walk.going & jnp.any(walk.candidates(tree) & ~tested, axis=1))
    wanted = jax.lax.cond(
        jnp.any(refuse),
        lambda: jnp.where(refuse[:, None], _still_wanted(state.wanted, draft), state.wanted),
        lambda: state.wanted,
    )
    wanted = jax.lax.cond(
        jnp.any(accept), lambda: jnp.where(accept[:, None], walk.log_probs(target_log_probs), wanted), lambda: wanted
    )
    thresholds = jnp.where(here, jnp.exp(log_accept)[:, None], state.thresholds)
    return _Search(walk, wanted, tested, thresholds)


def _still_wanted(wanted: Float[Array, "b v"], draft: Float[Array, "b v"]) -> Float[Array, "b v"]:
    """The normalized residual; where it is empty (equal up to rounding), what was wanted before."""
    residual = log_residual(wanted, draft)
    total = jax.nn.logsumexp(residual, axis=1, keepdims=True)
    return jnp.where(total > -jnp.inf, residual - total, wanted)
