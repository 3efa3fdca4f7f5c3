"""Faults of `jaxspec plan`: predictions that are not of what is run, and recommendations that nothing supports."""

from tests.mutants.mutant import Mutant

_PREDICTION, _RECOMMENDATION = "bench/plan/prediction.py", "bench/plan/recommendation.py"
_COSTS, _ROOFLINE = "bench/costs.py", "bench/plan/roofline.py"
_TESTS, _MEASURED = "tests/bench/test_plan.py", "tests/bench/test_plan_measured.py"
_DEVIATION, _FAR = "bench/plan/deviation.py", "tests/bench/test_plan_deviation.py"
_BATCH = f"{_TESTS}::test_a_batch_goes_on_until_its_last_row_has_ended_and_drafts_where_any_does"
_WHY = f"{_TESTS}::test_recommendations_say_why"
_STATES = f"{_MEASURED}::test_rounds_are_timed_with_all_drafts_and_with_none"

MUTANTS = (
    Mutant(
        "a plan runs the slowest case",
        "bench/plan/plan.py",
        "best, case = max(zip(",
        "best, case = min(zip(",
        (f"{_MEASURED}::test_the_case_that_is_predicted_to_be_fastest_is_run",),
    ),
    Mutant(
        "a plan's batch ends with its first row",
        _PREDICTION,
        "took = max((one.rounds_at(k) for one in rows)",
        "took = min((one.rounds_at(k) for one in rows)",
        (_BATCH,),
    ),
    Mutant(
        "a plan takes the rounds without drafts for those with",
        _PREDICTION,
        "(silent * idle + (1.0 - silent) * cost.round)",
        "(silent * cost.round + (1.0 - silent) * idle)",
        (f"{_TESTS}::test_rounds_without_drafts_take_less",),
    ),
    Mutant(
        "a plan takes a question that fills a batch for another one",
        _PREDICTION,
        "for one in answers.values())",
        "for one in rows)",
        (_BATCH,),
    ),
    Mutant(
        "a plan forgets the bonus token",
        _PREDICTION,
        "(self.rounds + sum(self.accepted_at)) / (self.rounds + sum(self.accepted_at[:k]))",
        "sum(self.accepted_at) / sum(self.accepted_at[:k])",
        (f"{_TESTS}::test_for_one_row_it_is_the_theorem",),
    ),
    Mutant(
        "a plan of fewer drafts counts them all",
        _PREDICTION,
        "sum(self.accepted_at[:k])",
        "sum(self.accepted_at[:])",
        (f"{_TESTS}::test_of_fewer_drafts_the_first_ones_count",),
    ),
    Mutant(
        "a plan times rounds without drafts on a text that has some",
        _COSTS,
        "tokens[:, -1] = 4",
        "tokens[:, -1] = tokens[:, -5]",
        (_STATES,),
    ),
    Mutant(
        "a plan times rounds with drafts on a text that has none",
        _COSTS,
        "np.arange(text, dtype=np.int32) % 4",
        "np.arange(text, dtype=np.int32)",
        (_STATES,),
    ),
    Mutant(
        "a plan times eight rounds for one",
        _COSTS,
        'samples.median(f"round {PLAIN}") / ROUNDS',
        'samples.median(f"round {PLAIN}")',
        (_STATES,),
    ),
    Mutant(
        "a plan recommends what it predicted and not what was measured",
        _RECOMMENDATION,
        "speculate = measured.speedup.median > 1",
        "speculate = predicted.speedup > 1",
        (_WHY,),
    ),
    Mutant(
        "the roof is the lower of what reading and computing need",
        _ROOFLINE,
        "max(reading, computing)",
        "min(reading, computing)",
        (f"{_TESTS}::test_a_roof_is_the_slower_of_reading_and_computing",),
    ),
    Mutant(
        "an embedding that is looked up counts as multiplied",
        _ROOFLINE,
        'matrices -= model.params["embedding"].size',
        "matrices -= 0",
        (f"{_TESTS}::test_operations_and_bytes_of_a_step",),
    ),
    Mutant(
        "a plan's error is a share of the prediction",
        _DEVIATION,
        "return self.predicted / self.measured - 1",
        "return 1 - self.measured / self.predicted",
        (f"{_FAR}::test_a_prediction_that_came_true_is_not_warned_of",),
    ),
    Mutant(
        "a plan that was too low is not warned of",
        _DEVIATION,
        "return abs(self.off) > LIMIT",
        "return self.off > LIMIT",
        (f"{_FAR}::test_a_prediction_that_came_true_is_not_warned_of",),
    ),
    Mutant(
        "a part that was off the other way is blamed",
        _DEVIATION,
        "key=lambda part: part.effect if self.off > 0 else -part.effect",
        "key=lambda part: abs(part.effect)",
        (f"{_FAR}::test_a_warning_names_the_part_that_was_off_most",),
    ),
    Mutant(
        "the draft pass counts in rounds without drafts",
        _DEVIATION,
        '"the draft pass": (share, cost.draft)',
        '"the draft pass": (1.0, cost.draft)',
        (f"{_FAR}::test_passes_count_in_the_rounds_that_draft",),
    ),
    Mutant(
        "a plan compares its parts with themselves",
        "bench/plan/plan.py",
        "after = measure([plain, case], batch=batch)[1][case.label]",
        "after = costs[case.label]",
        (f"{_MEASURED}::test_the_case_that_is_predicted_to_be_fastest_is_run",),
    ),
    Mutant(
        "a plan's caches are smaller than a run's",
        "bench/costs.py",
        "jnp.asarray(tokens), capacity=capacity, **options)",
        "jnp.asarray(tokens), capacity=None, **options)",
        (_STATES,),
    ),
    Mutant(
        "speculation is said to stop below a batch where it pays",
        _RECOMMENDATION,
        "pays_at = max(",
        "pays_at = min(",
        (f"{_TESTS}::test_crossover",),
    ),
)
