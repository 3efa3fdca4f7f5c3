"""Verifiers by name, for commands."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier

VERIFIERS: Mapping[str, type[Verifier]] = MappingProxyType(
    {
        "token": TokenVerifier,
        "block": BlockVerifier,
        "coupled": CoupledVerifier,
        "multi-draft": MultiDraftVerifier,
        "traversal": TraversalVerifier,
        "tree": TreeVerifier,
    }
)
