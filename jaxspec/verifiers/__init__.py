"""Collects the verifiers, one file each; `base.Verifier` documents how to write one."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.verifiers.base import Verifier as Verifier
    from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
    from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
    from jaxspec.verifiers.k_seq import KSequence as KSequence
    from jaxspec.verifiers.lenience import Lenience as Lenience
    from jaxspec.verifiers.multi_draft import MultiDraftVerifier as MultiDraftVerifier
    from jaxspec.verifiers.multi_draft import RecursiveRejection as RecursiveRejection
    from jaxspec.verifiers.rejection import TokenVerifier as TokenVerifier
    from jaxspec.verifiers.rejection import log_acceptance as log_acceptance
    from jaxspec.verifiers.rejection import log_residual as log_residual
    from jaxspec.verifiers.rejection import next_log_probs as next_log_probs
    from jaxspec.verifiers.relaxed import RelaxedRule as RelaxedRule
    from jaxspec.verifiers.relaxed import RelaxedVerifier as RelaxedVerifier
    from jaxspec.verifiers.synthetic import SyntheticVerifier as SyntheticVerifier
    from jaxspec.verifiers.traversal import TraversalVerifier as TraversalVerifier
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier
    from jaxspec.verifiers.tree_walk import DraftTree as DraftTree
    from jaxspec.verifiers.tree_walk import TreeWalk as TreeWalk
    from jaxspec.verifiers.tree_walk import WalkResult as WalkResult
    from jaxspec.verifiers.tree_walk import draw_verdict as draw_verdict
    from jaxspec.verifiers.typical import Typical as Typical

__getattr__, __dir__ = lazy(
    __name__,
    {
        "base": ("Verifier",),
        "block": ("BlockVerifier",),
        "coupled": ("CoupledVerifier",),
        "k_seq": ("KSequence",),
        "lenience": ("Lenience",),
        "multi_draft": ("MultiDraftVerifier", "RecursiveRejection"),
        "relaxed": ("RelaxedRule", "RelaxedVerifier"),
        "rejection": ("TokenVerifier", "log_acceptance", "log_residual", "next_log_probs"),
        "synthetic": ("SyntheticVerifier",),
        "traversal": ("TraversalVerifier",),
        "tree": ("TreeVerifier",),
        "typical": ("Typical",),
        "tree_walk": ("DraftTree", "TreeWalk", "WalkResult", "draw_verdict"),
    },
)
