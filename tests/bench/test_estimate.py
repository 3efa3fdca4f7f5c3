"""Ratios and their errors between clusters."""

import math

import numpy as np
import pytest

from jaxspec.bench.estimate import Estimate, ratio


def test_the_error_of_a_mean_of_single_values_is_the_usual_one():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = ratio(values, np.ones(4), np.arange(4))
    assert found.value == 4 and found.error == pytest.approx(np.std(values, ddof=1) / 2)


def test_what_one_cluster_repeats_tells_nothing_more():
    values, groups = np.array([1.0, 2.0, 4.0, 9.0]), np.arange(4)
    once, often = ratio(values, np.ones(4), groups), ratio(values.repeat(5), np.ones(20), groups.repeat(5))
    assert (often.value, often.error) == pytest.approx((once.value, once.error))


def test_one_cluster_has_no_error_and_nothing_has_no_value():
    assert ratio(np.array([1.0, 0.0]), np.ones(2), np.zeros(2, int)) == Estimate(0.5, None)
    assert math.isnan(ratio(np.zeros(2), np.zeros(2), np.arange(2)).value)
    assert Estimate(math.nan).as_record() == {"value": None, "error": None} and str(Estimate(math.nan)) == "-"
