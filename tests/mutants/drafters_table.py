"""Faults of the table of drafters: what drafting costs, and what is predicted of it."""

from tests.mutants.mutant import Mutant

_BYTES, _COSTS, _TABLES = "bench/draft_bytes.py", "bench/drafter_costs.py", "bench/drafter_tables.py"
_TESTS = "tests/benchmarks/test_drafters.py"

MUTANTS = (
    Mutant(
        "a block counts as a pass for each draft",
        _BYTES,
        "return _head(drafter.head, rows, context)",
        "return drafter.k * _head(drafter.head, rows, context)",
        (f"{_TESTS}::test_a_block_is_one_pass",),
    ),
    Mutant(
        "a sparse cache is read whole, by bytes",
        _BYTES,
        "min(context, drafter.sinks + drafter.window)",
        "context",
        (f"{_TESTS}::test_passes_are_counted_in_bytes",),
    ),
    Mutant(
        "by bytes, drafts cost nothing beside verification",
        _BYTES,
        "tokens / (1.0 + drafting)",
        "tokens / max(1.0, drafting)",
        (f"{_TESTS}::test_by_bytes_it_is_the_theorem",),
    ),
    Mutant(
        "turns of one prompt alone are compared",
        _COSTS,
        "[sum(turn) for turn in",
        "[turn[0] for turn in",
        (f"{_TESTS}::test_rounds_are_timed_in_steps_turn_by_turn",),
    ),
    Mutant(
        "what is predicted leaves out what a round costs",
        _TABLES,
        'lengths[name] / one["round"]',
        "lengths[name]",
        (f"{_TESTS}::test_the_table_of_costs_divides_tokens_by_time",),
    ),
    Mutant(
        "a long prompt leaves no room for its answer",
        "bench/source_text.py",
        "question.turns[0], context - new_tokens)",
        "question.turns[0], context)",
        ("tests/bench/test_named_questions.py::test_prompts_fill_the_context_but_for_the_answer",),
    ),
    Mutant(
        "a repeated round begins with the drafter's state of the one before",
        "bench/costs.py",
        "ours.truncate(theirs.length) if is_cache(ours) else theirs",
        "ours",
        ("tests/bench/test_costs.py",),
    ),
)
