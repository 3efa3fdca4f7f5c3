"""One file a verifier; `base` says what one is."""

from jaxspec.verifiers.base import Verifier as Verifier
from jaxspec.verifiers.block import BlockVerifier as BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
from jaxspec.verifiers.k_sequence import KSequence as KSequence
from jaxspec.verifiers.lenience import Lenience as Lenience
from jaxspec.verifiers.multi_draft import MultiDraftVerifier as MultiDraftVerifier
from jaxspec.verifiers.neighbourhood import Neighbourhood as Neighbourhood
from jaxspec.verifiers.neighbourhood import nearest_neighbours as nearest_neighbours
from jaxspec.verifiers.recursive import RecursiveRejection as RecursiveRejection
from jaxspec.verifiers.relaxed import RelaxedRule as RelaxedRule
from jaxspec.verifiers.relaxed import RelaxedVerifier as RelaxedVerifier
from jaxspec.verifiers.token import TokenVerifier as TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier as TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier as TreeVerifier
from jaxspec.verifiers.typical import Typical as Typical
