"""Faults of drafters whose context is shorter than the text."""

from tests.mutants.mutant import Mutant

_FILE = "drafters/bounded.py"
_TESTS = "tests/drafters/test_bounded.py"

MUTANTS = (
    Mutant(
        "drafts stand beyond the drafter's context",
        _FILE,
        "valid=proposal.valid & (places <= most[:, None])",
        "valid=proposal.valid & (places > 0) & (most[:, None] > 0)",
        (f"{_TESTS}::test_it_drafts_as_far_as_its_context_and_then_rests[model]",),
        slow=True,
    ),
    Mutant(
        "a drafter's cache grows with the text beyond its context",
        _FILE,
        "else min(slots, bound + drafter.max_drafts + 1)",
        "else slots",
        (f"{_TESTS}::test_its_cache_has_slots_for_its_context_and_a_round",),
    ),
    Mutant(
        "a drafter that rests has its target score drafts that nobody made",
        _FILE,
        "return (0, *drafter.lengths)",
        "return drafter.lengths",
        (f"{_TESTS}::test_a_fixed_length_decodes_plainly_where_all_rows_rest",),
        slow=True,
    ),
    Mutant(
        "a hybrid waits for a model that rests",
        "drafters/hybrid.py",
        "jnp.minimum(record.accepted, room.astype(jnp.float32))",
        "record.accepted",
        (f"{_TESTS}::test_the_other_half_of_a_hybrid_goes_on",),
        slow=True,
    ),
)
