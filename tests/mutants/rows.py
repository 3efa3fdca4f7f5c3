"""Faults of rows that move between states, and of texts that go on from another's state."""

from tests.mutants.mutant import Mutant

_ROWS = "core/rows.py"
_MOVED = ("tests/core/test_rows.py::test_rows_are_taken_inserted_gathered_and_repeated",)

MUTANTS = (
    Mutant(
        "a row is written along the first axis of every array",
        _ROWS,
        "jax.lax.dynamic_update_slice_in_dim(x, row, slot, axis)",
        "jax.lax.dynamic_update_slice_in_dim(x, row, slot, 0)",
        _MOVED,
    ),
    Mutant(
        "an axis that rows share with something else is taken for theirs",
        _ROWS,
        "if len(axes) > 1 or (two[axes[0]], three[axes[0]]) != (2, 3):",
        "if len(axes) > 1:",
        ("tests/core/test_rows.py::test_rows_without_an_axis_of_their_own_are_refused",),
    ),
    Mutant(
        "a text that begins alike is continued after the other one's end",
        "drafters/draft_model.py",
        "held = jnp.minimum(state.cache.length, start)",
        "held = state.cache.length",
        ("tests/drafters/test_model.py::TestTransformerDraft::test_a_text_that_begins_alike_is_continued",),
        slow=True,
    ),
)
