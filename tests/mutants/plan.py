"""Faults of `jaxspec plan`: recommendations that its runs do not support."""

from tests.mutants.mutant import Mutant

_PLAN, _TESTS = "bench/plan.py", "tests/bench/test_plan.py"

MUTANTS = (
    Mutant(
        "a plan recommends the slowest case",
        _PLAN,
        "speedup, best = max(drafting",
        "speedup, best = min(drafting",
        (f"{_TESTS}::test_the_fastest_case_is_recommended",),
    ),
    Mutant(
        "a plan recommends what was fastest on one task",
        _PLAN,
        "if one.task == ALL and one.speedup is not None]",
        "if one.speedup is not None]",
        (f"{_TESTS}::test_the_fastest_case_is_recommended",),
    ),
    Mutant(
        "a plan recommends a drafter that was slower than plain decoding",
        _PLAN,
        "if speedup.median > 1:",
        "if speedup.median > 0:",
        (f"{_TESTS}::test_recommendations_say_why",),
    ),
    Mutant(
        "a plan tries each drafter with one number of drafts",
        _PLAN,
        "halves=True",
        "halves=False",
        (f"{_TESTS}::test_a_plan_measures_a_grid",),
    ),
    Mutant(
        "speculation is said to stop below a batch where it pays",
        _PLAN,
        "pays_at = max(",
        "pays_at = min(",
        (f"{_TESTS}::test_crossover",),
    ),
    Mutant(
        "rounds are timed on a text in which no n-gram is found",
        "bench/costs.py",
        "np.arange(text, dtype=np.int32) % 4",
        "np.arange(text, dtype=np.int32)",
        ("tests/bench/test_costs.py::test_rounds_are_timed_with_all_drafts",),
        slow=True,
    ),
)
