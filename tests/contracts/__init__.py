"""What every plug-in promises. A test file subclasses a contract and inherits its tests.

Verifiers and drafters of trees have contracts of their own besides, in `tree_verifier` and `tree_drafter`. A class
that inherits a contract beside another of its kind may name in `quick_tests` those that are always run: see `conftest`.
"""

from tests.contracts.drafter import DrafterContract as DrafterContract
from tests.contracts.model import ModelContract as ModelContract
from tests.contracts.verifier import VerifierContract as VerifierContract

# For `quick_tests` of a class beside another that inherits `DrafterContract`: its drafts are right, whatever happened.
VARIANT_TESTS = (
    "test_the_reported_distribution_is_that_of_the_drafts",
    "test_after_any_acceptance_it_drafts_as_if_it_were_new",
)
# Of one whose state is kept as its other kinds keep it.
DRAFTS_TEST = VARIANT_TESTS[:1]
# The same of a class beside another that inherits `ModelContract`: pieces of a text are scored as the text.
MODEL_VARIANT_TESTS = ("test_it_is_a_model", "test_ragged_chunks_give_the_logits_of_the_whole")
