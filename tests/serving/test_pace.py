"""Turns take about the time that they should, for rounds of any length."""

import pytest

from jaxspec.serving.pace import Pace


@pytest.mark.parametrize("round_seconds", [1e-4, 0.004, 0.03, 2.0])
def test_a_turn_takes_about_the_time_that_it_should(round_seconds):
    pace = Pace(0.05, 16)
    assert pace.rounds("kind") == 4  # nothing is known
    for _ in range(40):
        pace.ran("kind", pace.rounds("kind"), pace.rounds("kind") * round_seconds)
    assert pace.rounds("kind") == max(1, min(16, int(0.05 / round_seconds)))
    assert pace.rounds("another") == 4


def test_one_slow_turn_changes_little_and_many_do():
    pace = Pace(0.05, 16)
    pace.ran("kind", 8, 8 * 0.005)
    pace.ran("kind", 10, 10 * 0.02)
    assert 4 < pace.rounds("kind") < 10
    for _ in range(30):
        pace.ran("kind", 4, 4 * 0.02)
    assert pace.rounds("kind") == 2
    pace.ran("kind", 0, 9.0)  # no row was live
    assert pace.rounds("kind") == 2
