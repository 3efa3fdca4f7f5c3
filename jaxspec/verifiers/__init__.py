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
    from jaxspec.verifiers.relaxed import RelaxedRule as RelaxedRule
    from jaxspec.verifiers.relaxed import RelaxedVerifier as RelaxedVerifier
    from jaxspec.verifiers.traversal import TraversalVerifier as TraversalVerifier
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier
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
        "rejection": ("TokenVerifier",),
        "traversal": ("TraversalVerifier",),
        "tree": ("TreeVerifier",),
        "typical": ("Typical",),
    },
)
