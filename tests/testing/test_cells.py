"""The partition of the cube of uniforms: boxes, their results and their volumes."""

import numpy as np
import pytest

from jaxspec.testing.cells import NotPartitionedError, partition


def divided(function, axes, checks=100):
    cells = partition(function, axes, np.random.default_rng(0), checks=checks, known=[[] for _ in range(axes)])
    found = {}
    for cell in cells:
        found[cell.result] = found.get(cell.result, 0.0) + cell.volume
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    return found


def test_thresholds_are_found():
    assert divided(lambda point: int(point[0] < 1 / 3), 1) == pytest.approx({0: 2 / 3, 1: 1 / 3}, abs=1e-6)
    thirds = divided(lambda point: int(3 * point[1]) + 3 * int(point[0] < 0.1), 2)
    assert thirds == pytest.approx({i: (0.1 if i >= 3 else 0.9) / 3 for i in range(6)}, abs=2e-6)


def test_a_threshold_may_depend_on_other_uniforms():
    """And is not monotone: an interval in the middle, in one half."""
    middle = lambda point: point[0] < 0.5 and 0.4 < point[1] < 0.45
    assert divided(middle, 2) == pytest.approx({True: 0.025, False: 0.975}, abs=2e-6)


def test_thresholds_of_one_box_are_looked_for_in_the_others():
    """A narrow slab, of which each box has a small part: a few random points would miss some."""
    function = lambda point: "rejected" if point[0] > 0.96 else int(8 * point[1])
    found = divided(function, 2, checks=1)
    assert found == pytest.approx({"rejected": 0.04} | dict.fromkeys(range(8), 0.12), abs=1e-5)


def test_there_may_be_no_uniforms():
    assert divided(lambda point: "only", 0) == {"only": 1}


@pytest.mark.parametrize("function", [lambda point: point[0] + point[1] < 1, lambda point: int(1e4 * point[0])])
def test_what_has_no_cells(function):
    with pytest.raises(NotPartitionedError):
        divided(function, 2)


def test_randomness_of_its_own():
    rng = np.random.default_rng(0)
    with pytest.raises(NotPartitionedError):
        divided(lambda point: int(rng.random() < 0.5), 2)
