"""Contract tests that always run, even if a similar class is tested too: for `quick_tests`, see `conftest`."""

# For `quick_tests` of a further `DrafterContract` class: its drafts are right after any history.
VARIANT_TESTS = (
    "test_the_reported_distribution_is_that_of_the_drafts",
    "test_after_any_acceptance_it_drafts_as_if_it_were_new",
)
# For a class that keeps its state as similar classes do.
DRAFTS_TEST = VARIANT_TESTS[:1]
# For a class that draws as similar classes do, and keeps another state.
STATE_TEST = VARIANT_TESTS[1:]
# For a class whose caches lag in rows that have ended.
ENDED_ROWS_TEST = ("test_rows_that_have_ended_hold_what_is_true",)
# For `quick_tests` of a further `ModelContract` class: pieces of a text are scored as the whole text.
MODEL_VARIANT_TESTS = ("test_it_is_a_model", "test_ragged_chunks_give_the_logits_of_the_whole")
