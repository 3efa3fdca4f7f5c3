"""Faults of `jaxspec acceptance`: wrong estimates of a drafter."""

from tests.mutants.mutant import Mutant

_MEASURED, _FIGURES, _LOG = "bench/acceptance.py", "bench/acceptance_report.py", "bench/engine_log.py"
_TESTS, _LOG_TESTS = "tests/bench/test_acceptance.py", "tests/bench/test_engine_log.py"

MUTANTS = (
    Mutant(
        "a draft is reached once it was itself accepted",
        _MEASURED,
        "jnp.pad(passed[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)",
        "passed",
        (f"{_TESTS}::test_expectations_are_the_sums_over_all_texts",),
    ),
    Mutant(
        "a given text goes on with the token after the next",
        _MEASURED,
        "jnp.minimum(rng.length, self.given.shape[1] - 1)",
        "jnp.minimum(rng.length + 1, self.given.shape[1] - 1)",
        (f"{_TESTS}::test_certain_drafts_are_accepted_as_often_as_the_target_says_them",),
    ),
    Mutant(
        "places count alike, however seldom a draft gets there",
        _FIGURES,
        "acceptance = ratio(reach * accept, reach, groups)",
        "acceptance = ratio(accept, ones, groups)",
        (f"{_TESTS}::test_places_are_weighted_by_the_chance_that_a_draft_gets_there",),
    ),
    Mutant(
        "an engine's later positions count rounds that never came there",
        _LOG,
        "pairs = itertools.pairwise(reached)",
        "pairs = ((drafts, more) for more in accepted)",
        (f"{_LOG_TESTS}::test_counters_are_shares_of_what_gets_there",),
    ),
    Mutant(
        "an engine's rounds of one request count as independent",
        _LOG,
        "shares.append(ratio(reached & (accepted > place), reached, request))",
        "shares.append(ratio(reached & (accepted > place), reached, np.arange(len(found))))",
        (f"{_LOG_TESTS}::test_requests_are_clusters",),
    ),
)
