"""Faults of drafters by name, of the table of drafters, and of the costs of rounds."""

from tests.mutants.mutant import Mutant

_BENCHMARKS = "../tests/benchmarks"
_TESTS = "tests/benchmarks/test_drafters.py"

MUTANTS = (
    Mutant(
        "a model whose head is missing drafts with it",
        "text/names.py",
        "if missing not in entry.missing_drafters:",
        "if missing:",
        ("tests/checkpoints/test_shipped.py::test_without_its_head_a_model_drafts_by_copying",),
    ),
    Mutant(
        "turns of one prompt alone are compared",
        f"{_BENCHMARKS}/drafter_costs.py",
        "[sum(turn) for turn in",
        "[turn[0] for turn in",
        (f"{_TESTS}::test_rounds_are_timed_in_steps_turn_by_turn",),
    ),
    Mutant(
        "a long prompt leaves no room for its answer",
        f"{_BENCHMARKS}/source_text.py",
        "question.turns[0], context - new_tokens)",
        "question.turns[0], context)",
        ("tests/benchmarks/test_source_text.py::test_prompts_fill_the_context_but_for_the_answer",),
    ),
    Mutant(
        "a repeated round begins with the drafter's state of the one before",
        "bench/costs.py",
        "ours.truncate(theirs.length) if is_cache(ours) else theirs",
        "ours",
        ("tests/bench/test_costs.py",),
        slow=True,
    ),
    Mutant(
        "a dtype for a drafter without weights is ignored",
        "text/names.py",
        'if placed and name_or_path != "auto" and not has_weights(name):',
        "if False:",
        ("tests/text/test_names.py::test_names_that_do_not_fit",),
    ),
    Mutant(
        "plain decoding draws from another stream than coupled speculation",
        "verifiers/table.py",
        "return CoupledVerifier()",
        "return TokenVerifier()",
        ("tests/drafters/test_base.py::test_each_kind_of_drafts_has_a_default_verifier",),
    ),
    Mutant(
        "a length for a lookup half that is not there is ignored",
        "drafters/adapt.py",
        "if lookup is not None:",
        "if False:",
        ("tests/drafters/test_base.py::test_a_drafter_without_a_lookup_half_takes_no_length_for_it",),
    ),
)
