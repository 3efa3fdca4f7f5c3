"""Faults of the costs that adaptive draft lengths use, and of the rows that the halves of a hybrid draft for."""

from tests.mutants.mutant import Mutant

_ADAPTING, _HYBRID = "tests/drafters/test_adapt.py", "tests/drafters/test_hybrid.py"

MUTANTS = (
    Mutant(
        "measured costs are kept and not looked at",
        "drafters/adapt.py",
        "if costs := saved_costs(target, drafter, measured, batch=batch):",
        "if costs := None:",
        (f"{_ADAPTING}::test_measured_costs_come_before_estimates",),
    ),
    Mutant(
        "several rows never draft one token",
        "drafters/adapt.py",
        "if longest < 2 or model.widened",
        "if longest < 99 or model.widened",
        (f"{_ADAPTING}::test_where_more_tokens_are_dear_one_draft_is_a_choice",),
    ),
    Mutant(
        "plan measures the lengths of one row alone",
        "bench/costs.py",
        "{*length.lengths, 1}",
        "{*length.lengths}",
        ("tests/bench/test_costs.py::test_costs_of_several_rows_are_kept_for_the_lengths_that_those_choose_from",),
    ),
    Mutant(
        "a head that is not worth its time keeps up with all rows",
        "drafters/adapt.py",
        "(HybridDrafter, adapted), rests=True)",
        "(HybridDrafter, adapted), rests=False)",
        (f"{_ADAPTING}::test_a_head_rests_where_nine_right_drafts_in_ten_would_not_save_a_tenth",),
    ),
    Mutant(
        "an engine's head never rests",
        "serving/group.py",
        "target, self.width, rests=True)",
        "target, self.width)",
        ("tests/serving/test_groups.py::test_the_head_of_many_live_rows_rests",),
    ),
    Mutant(
        "costs measured with another batch are taken",
        "drafters/cost_file.py",
        '"batch": batch,',
        '"batch": 1,',
        (f"{_ADAPTING}::test_measured_costs_come_before_estimates",),
    ),
    Mutant(
        "the lookup half of a hybrid goes by the model's costs",
        "drafters/adapt.py",
        "lookup=_adaptive(lookup, target, length.lengths[-1], batch)",
        "lookup=length",
        (f"{_ADAPTING}::test_both_halves_of_a_hybrid_adapt_by_their_own_costs",),
    ),
    Mutant(
        "a model learns from rows that copied",
        "drafters/hybrid.py",
        "modeled = dataclasses.replace(context, draft_rows=~state.copied)",
        "modeled = context",
        (f"{_HYBRID}::test_each_half_s_draft_length_learns_from_the_rows_that_it_drafted_for",),
        slow=True,
    ),
    Mutant(
        "a model does not see the rows that wait for it",
        "drafters/chain.py",
        "self.draft_length.longest(state.length_state, draftable, context.active))",
        "self.draft_length.longest(state.length_state, draftable, draftable))",
        (f"{_HYBRID}::test_the_model_counts_the_rows_that_wait_for_it",),
    ),
    Mutant(
        "rows that found nothing count as if they drafted",
        "drafters/lookup.py",
        "longest_certain(state.length_state, found, active, certain)",
        "longest_certain(state.length_state, active, active, certain)",
        ("tests/drafters/test_ngram.py::test_rows_that_found_nothing_wait_for_those_that_did",),
    ),
    Mutant(
        "rows that may not draft are searched all the same",
        "drafters/lookup.py",
        "if 0 in self.draft_length.lengths else search()",
        "if None in self.draft_length.lengths else search()",
        (f"{_ADAPTING}::test_where_no_row_may_draft_none_is_searched",),
        slow=True,
    ),
)
