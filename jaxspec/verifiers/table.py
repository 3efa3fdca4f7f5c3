"""Lists the verifiers by name, and selects the default one for a drafter."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxspec.verifiers.base import DraftKind, Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.univer import UniVerVerifier

VERIFIERS: Mapping[str, type[Verifier]] = MappingProxyType(
    {
        "token": TokenVerifier,
        "block": BlockVerifier,
        "coupled": CoupledVerifier,
        "multi-draft": MultiDraftVerifier,
        "traversal": TraversalVerifier,
        "tree": TreeVerifier,
        "univer": UniVerVerifier,
    }
)


def default_verifier(drafter: DraftKind) -> Verifier:
    """Returns the verifier that accepts the most drafts for its cost.

    Plain decoding uses the noise that `CoupledVerifier` shares with its drafters, so that coupled speculation emits the
    tokens of plain decoding with the same key.
    """
    if drafter.max_drafts == 0:
        return CoupledVerifier()
    if drafter.tree:
        return TreeVerifier() if drafter.deterministic else MultiDraftVerifier()
    return TokenVerifier() if drafter.deterministic else BlockVerifier()


def seeded_verifier() -> Verifier:
    """Returns the verifier whose tokens depend on the key and the text alone, not on the drafts."""
    return VERIFIERS["coupled"]()
