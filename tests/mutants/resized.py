"""Faults of draft models with more token ids than their target, or fewer."""

from tests.mutants.mutant import Mutant

_FILE = "drafters/resized.py"
_TESTS = "tests/drafters/test_resized.py"
_NAMED = "tests/text/test_names.py::test_a_padded_vocabulary_of_the_same_tokens_needs_no_map"

_WRAPPED = "tests/core/test_traits.py::test_a_wrapper_forwards_all_that_it_does_not_change"

MUTANTS = (
    Mutant(
        "a resized model has the traits of any model",
        _FILE,
        "dataclasses.replace(self.model.traits, hidden_sizes=None)",
        "ModelTraits()",
        (f"{_WRAPPED}[ResizedModel]",),
    ),
    Mutant(
        "a trimmed model is read by heads that were trained for the whole vocabulary",
        "drafters/trimmed.py",
        "dataclasses.replace(self.model.traits, hidden_sizes=None)",
        "self.model.traits",
        (f"{_WRAPPED}[TrimmedModel]",),
    ),
    Mutant(
        "a foreign model that heads are made for has the traits of a built-in one",
        "foreign/head_target.py",
        "dataclasses.replace(self.model.traits, placement",
        "dataclasses.replace(ModelTraits(), placement",
        (f"{_WRAPPED}[HeadTarget]",),
    ),
    Mutant(
        "a wrapper has the traits of any model",
        "core/model.py",
        "return self.model.traits",
        "return ModelTraits()",
        ("tests/core/test_traits.py::test_a_wrapper_that_changes_nothing",),
    ),
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
