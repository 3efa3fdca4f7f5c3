"""Verifies trees from the leaves up: block verification for trees."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.rejection import log_residual
from jaxspec.verifiers.upward_walk import LocalRule, Offer, verify_up, walk_up


@dataclasses.dataclass(frozen=True)
class LocalRejection(LocalRule):
    """Accepts a draft with `min(1, ratio * residual / draft)`; each rejection updates the ratio and the residual.

    A rule for `LiftedVerifier`: recursive rejection for a target that may fail. Drafts may be drawn with or without
    replacement, by different models, or be certain (a one-hot distribution). On a chain it is block verification.

    Example:
        >>> drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree((-1, -1, 0)), jaxspec.drafters.WithoutReplacement())
        >>> verifier = jaxspec.verifiers.LiftedVerifier(jaxspec.verifiers.LocalRejection())
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=verifier, max_new_tokens=4)
        >>> jaxspec.generate(target, drafter, prompt, **options).tokens.shape
        (2, 4)

    References:
      Weng et al. (2025), arXiv:2505.12398, algorithm 1.
    """

    def log_acceptance(self, offer: Offer) -> Float[Array, "b"]:
        gain = offer.residual_at_token() - offer.draft_at_token()
        return jnp.minimum(offer.log_ratio + gain, 0.0)

    def after_rejection(self, offer: Offer) -> tuple[Float[Array, "b"], Float[Array, "b v"]]:
        return after_rejection(offer.log_ratio, offer.residual(), offer.draft())


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TraversalVerifier(Verifier):
    """Descends to a leaf, then decides on the way back up whether to accept the path to each node as a whole.

    Each node carries the running ratio of its path, so that a poor token can be rescued by good ones below it. A
    rejected path passes its residual to its parent, where the next sibling is tried. On a chain, this is block
    verification. Lossless for drafts sampled with or without replacement. Deterministic drafts are verified as by
    `TreeVerifier`, since there is nothing to gain.

    Example:
        >>> drafter = jaxspec.ModelDrafter(draft, k=2, num_drafts=2)
        >>> options = dict(key=key, sampling=jaxspec.Sampling(), verifier=jaxspec.verifiers.TraversalVerifier())
        >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=4, **options).tokens.shape
        (2, 4)

    References:
      Weng et al. (2025), arXiv:2505.12398, algorithm 1.
      Block verification: Sun et al. (2024), arXiv:2403.10444.
    """

    trees: ClassVar[bool] = True

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"]) -> Verdict:
        return verify_up(LocalRejection(), rng, proposal, target_log_probs)


# `descend(tree, target_log_probs, uniforms)`: traverses the tree. Pure.
descend = functools.partial(walk_up, LocalRejection())


def after_rejection(
    log_ratio: Float[Array, "b"], residual: Float[Array, "b v"], draft: Float[Array, "b v"]
) -> tuple[Float[Array, "b"], Float[Array, "b v"]]:
    """Computes a node's running ratio and residual after another child is rejected.

    With `mass` the sum of `max(ratio * residual - draft, 0)`, the ratio becomes `mass / (mass + 1 - ratio)`, and the
    residual becomes that positive part, normalized.
    """
    rest = log_residual(log_ratio[:, None] + residual, draft)
    log_mass = jax.nn.logsumexp(rest, axis=1)
    mass = jnp.exp(log_mass)
    total = mass - jnp.expm1(log_ratio)
    new_ratio = jnp.where(total > 0, log_mass - jnp.log(jnp.where(total > 0, total, 1.0)), 0.0)
    empty = log_mass == -jnp.inf
    return jnp.minimum(new_ratio, 0.0), jnp.where(empty[:, None], residual, rest - log_mass[:, None])
