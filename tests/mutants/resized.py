"""Faults of draft models with more token ids than their target, or fewer."""

from tests.mutants.mutant import Mutant

_FILE = "drafters/resized.py"
_TESTS = "tests/drafters/test_resized.py"
_NAMED = "tests/test_named.py::test_a_padded_vocabulary_of_the_same_tokens_needs_no_map"

MUTANTS = (
    Mutant(
        "ids that the draft model lacks are drafted",
        _FILE,
        "constant_values=-jnp.inf",
        "constant_values=0.0",
        (f"{_TESTS}::test_the_distribution_is_the_target_s[smaller-block]",),
        slow=True,
    ),
    Mutant(
        "a draft model that lacks tokens of its tokenizer counts as one of the same tokens",
        _FILE,
        "own.vocab_size <= min(sizes)",
        "own.vocab_size <= max(sizes)",
        (_NAMED,),
    ),
)
