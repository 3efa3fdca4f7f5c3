"""Faults of a cache of which drafts see a part: which part, and where its tokens stand."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/contrib/test_sparse_cache.py"
_PROBS = f"{_TESTS}::TestSparseCache::test_the_reported_distribution_is_that_of_the_drafts"
_ENDS = "tests/nn/test_cache.py::test_the_ends_of_each_row"

MUTANTS = (
    Mutant(
        "the window ends before the newest token",
        "nn/cache.py",
        "window(x, first + left_out)",
        "window(x, first + left_out - 1)",
        (_ENDS,),
    ),
    Mutant(
        "the window's tokens stand right after the first ones",
        "nn/cache.py",
        "jnp.where(numbers < first, 0, left_out[:, None])",
        "jnp.where(numbers < first, 0, 0 * left_out[:, None])",
        (_ENDS, _PROBS),
    ),
    Mutant(
        "tokens after a part of the text take their slots as positions",
        "nn/transformer.py",
        "return jnp.take_along_axis(cache.positions, slots, axis=1)",
        "return slots",
        (_PROBS,),
        slow=True,
    ),
    Mutant(
        "attention takes slots for positions",
        "nn/attention.py",
        "if cache.positions is not None:",
        "if cache.positions is None and cache.length.ndim == 0:",
        (_PROBS,),
        slow=True,
    ),
)
