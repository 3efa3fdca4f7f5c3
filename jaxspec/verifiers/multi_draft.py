"""Verification of several drafts at once."""

import dataclasses
from typing import ClassVar, Protocol

from jax import Array
from jaxtyping import Float

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal, Verdict
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.recursive import RecursiveRejection
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.tree_walk import WalkResult, as_tree, draw_verdict


class Rule(Protocol):
    """How the candidates at one place are taken or refused, one after the other."""

    def check(self, drafter) -> None:
        """Raises `ValueError` if the rule would be wrong for what `drafter` drafts."""

    def descend(
        self, tree: Proposal, target_log_probs: Float[Array, "b n_plus_1 v"], uniforms: Float[Array, "b n"]
    ) -> WalkResult:
        """The walk down the tree that `uniforms`, one a node, lead to."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MultiDraftVerifier(Verifier):
    """Several candidates for each place, verified with the distributions that they were drawn from.

    Takes any proposal: several chains, one chain, a tree. Where drafts share their beginning, all
    of them that agree with the accepted text compete for the next place. Lossless.

    Attributes:
      rule: `RecursiveRejection()`, for candidates of any distributions, drawn with or without replacement
        and by one or several drafters; or `KSequence()`, for independent drafts of one distribution.

    Certain drafts (without a distribution) are verified as `TreeVerifier` does, which is the best for them.
    """

    trees: ClassVar[bool] = True
    rule: Rule = dataclasses.field(default=RecursiveRejection())

    def check(self, drafter) -> None:
        self.rule.check(drafter)

    def verify(self, rng: RoundKeys, proposal: Proposal, target_log_probs) -> Verdict:
        if proposal.log_probs is None:
            return TreeVerifier().verify(rng, proposal, target_log_probs)
        uniforms = rng.uniforms(proposal.tokens.shape[1])
        return draw_verdict(rng, proposal, self.rule.descend(as_tree(proposal), target_log_probs, uniforms))
