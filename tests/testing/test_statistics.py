"""The p-values are those of SciPy, and a single impossible outcome is seen."""

import numpy as np
import pytest
from scipy import stats

from jaxspec.testing.statistics import FALSE_ALARM, chi_square, independence, same_distribution

PROBS = np.array([0.1, 0.2, 0.3, 0.4])


def test_p_values_are_those_of_scipy():
    counts = np.array([110, 190, 310, 390])
    assert chi_square(counts, PROBS) == pytest.approx(stats.chisquare(counts, PROBS * 1000).pvalue)
    table = np.array([[10, 0, 25], [0, 0, 0], [40, 0, 20]])
    kept = table[[0, 2]][:, [0, 2]]
    assert independence(table) == pytest.approx(stats.chi2_contingency(kept, correction=False).pvalue)


def test_lists_are_read_as_arrays():
    assert chi_square([110, 190, 310, 390], PROBS.tolist()) == chi_square(np.array([110, 190, 310, 390]), PROBS)
    with pytest.raises(ValueError, match="one shape"):
        same_distribution([0.5, 0.5], [1, 2, 3])


def test_an_outcome_that_cannot_come_fails():
    assert chi_square(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0])) == 0.0


def test_the_false_alarm_rate_is_shared_by_tests():
    counts = np.array([1130, 870])
    p_value = chi_square(counts, np.array([0.5, 0.5]))
    assert FALSE_ALARM / 1e6 < p_value < FALSE_ALARM
    with pytest.raises(AssertionError, match="p-value"):
        same_distribution(np.array([0.5, 0.5]), counts)
    same_distribution(np.array([0.5, 0.5]), counts, tests=1_000_000)


@pytest.mark.parametrize(("probs", "seen"), [(PROBS, False), (np.array([0.12, 0.2, 0.3, 0.38]), True)])
def test_a_bias_is_seen_and_samples_of_the_distribution_are_not(probs, seen):
    counts = np.random.default_rng(0).multinomial(20_000, probs)
    assert (chi_square(counts, PROBS) < FALSE_ALARM) == seen
