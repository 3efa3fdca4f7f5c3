"""Faults of requests that come and go."""

from tests.mutants.mutant import Mutant

_SLOTS, _ENGINE, _FILES = (
    "tests/decoding/test_slots.py",
    "tests/serving/test_engine.py",
    "tests/serving/test_completion.py",
)

MUTANTS = (
    Mutant(
        "rows that moved are looked for in their old slots",
        "serving/group.py",
        "self.live = dict(enumerate(self.live.values()))",
        "self.live = dict(self.live)",
        (f"{_ENGINE}::test_rows_move_to_half_the_width_and_back",),
    ),
    Mutant(
        "a request with a seed is drawn as others are",
        "serving/engine.py",
        "verifier = seeded_verifier() if sampled and self._verifier is None else None",
        "verifier = None",
        (f"{_ENGINE}::test_texts_of_all_kinds_are_those_of_lone_calls",),
        slow=True,
    ),
    Mutant(
        "an answer that was cut off is kept",
        "serving/completion.py",
        'whole = raw[: raw.rfind(b"\\n") + 1]',
        'whole = raw + b"\\n"',
        (f"{_FILES}::test_an_interrupted_run_goes_on",),
    ),
    Mutant(
        "a cancelled row goes on",
        "decoding/slots.py",
        "state = slots.state if cancel is None else slots.state.with_done(slots.state.done | cancel)",
        "state = slots.state",
        (f"{_SLOTS}::test_a_row_that_was_cancelled_emits_nothing_more",),
    ),
    Mutant(
        "a released slot keeps its length",
        "decoding/slots.py",
        "length = jnp.where(which, 1, context.length)",
        "length = context.length",
        (f"{_SLOTS}::test_a_released_slot_is_free",),
    ),
)
