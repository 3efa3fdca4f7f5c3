"""Faults of draft models whose vocabulary is trimmed."""

from tests.mutants.mutant import Mutant

_FILE = "drafters/trimmed.py"
_TESTS = "tests/drafters/test_trimmed.py"

MUTANTS = (
    Mutant(
        "places in the smaller head are taken for tokens",
        "drafters/draft_vocabulary.py",
        "return places if self.ids is None else self.ids[places]",
        "return places",
        (f"{_TESTS}::test_the_distribution_is_the_target_s[block]",),
    ),
    Mutant(
        "logits stand at their places in the smaller head",
        "nn/language_model.py",
        "else head[ids]",
        "else head[: len(ids)]",
        (f"{_TESTS}::test_the_head_is_the_model_s_own_rows[plain]",),
    ),
    Mutant(
        "inputs are taken where outputs are to be",
        "ops/packed.py",
        'axes = ("rows", *(None,) * (self.ndim - 1))',
        'axes = (*(None,) * (self.ndim - 1), "rows")',
        (f"{_TESTS}::test_the_head_is_the_model_s_own_rows[grouped]",),
    ),
    Mutant(
        "ends of text are not drafted",
        "drafters/draft_vocabulary.py",
        "if tokenizer.is_special(index) or index in tokenizer.eos_token_ids",
        "if False",
        (f"{_TESTS}::test_special_tokens_and_ends_are_added_to_a_number",),
    ),
    Mutant(
        "ids that repeat are taken",
        "drafters/draft_vocabulary.py",
        "ids[1:][ids[1:] == ids[:-1]]",
        "ids[:0]",
        (f"{_TESTS}::test_what_does_not_fit_is_refused",),
    ),
    Mutant(
        "costs count the model with its complete head",
        "drafters/trimmed.py",
        "isinstance(model, ResizedModel | TrimmedModel)",
        "isinstance(model, ResizedModel)",
        (f"{_TESTS}::test_an_adaptive_length_counts_the_smaller_head",),
    ),
)
