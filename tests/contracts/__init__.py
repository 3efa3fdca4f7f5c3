"""What every plug-in promises. A test file subclasses a contract and inherits its tests.

Verifiers and drafters of trees have contracts of their own besides, in `contracts_tree_verifier`
and `contracts_tree_drafter`.
"""

from tests.contracts.drafter import DrafterContract as DrafterContract
from tests.contracts.model import ModelContract as ModelContract
from tests.contracts.verifier import VerifierContract as VerifierContract
