"""Exports the verifiers, one per file; `base.Verifier` documents how to write one."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.verifiers.base import Verifier as Verifier
    from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
    from jaxspec.verifiers.cactus import Cactus as Cactus
    from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
    from jaxspec.verifiers.ensemble import StaticEnsemble as StaticEnsemble
    from jaxspec.verifiers.k_seq import KSequence as KSequence
    from jaxspec.verifiers.multi_draft import (
        MultiDraftVerifier as MultiDraftVerifier,
        RecursiveRejection as RecursiveRejection,
    )
    from jaxspec.verifiers.rejection import (
        TokenVerifier as TokenVerifier,
        log_acceptance as log_acceptance,
        log_residual as log_residual,
        next_log_probs as next_log_probs,
    )
    from jaxspec.verifiers.relaxed import (
        Lenience as Lenience,
        RelaxedRule as RelaxedRule,
        RelaxedVerifier as RelaxedVerifier,
    )
    from jaxspec.verifiers.traversal import (
        LocalRejection as LocalRejection,
        TraversalVerifier as TraversalVerifier,
    )
    from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier
    from jaxspec.verifiers.tree_walk import (
        DraftTree as DraftTree,
        TreeWalk as TreeWalk,
        WalkResult as WalkResult,
        draw_verdict as draw_verdict,
    )
    from jaxspec.verifiers.typical import Typical as Typical
    from jaxspec.verifiers.univer import UniVerVerifier as UniVerVerifier
    from jaxspec.verifiers.upward_walk import (
        LiftedVerifier as LiftedVerifier,
        LocalRule as LocalRule,
        Offer as Offer,
    )
