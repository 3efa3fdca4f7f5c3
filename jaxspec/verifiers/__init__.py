"""One file a verifier; `base` says what one is."""

from jaxspec.verifiers.base import Verifier as Verifier
from jaxspec.verifiers.coupled import CoupledVerifier as CoupledVerifier
from jaxspec.verifiers.token import TokenVerifier as TokenVerifier
