"""The soak test counts errors; `python -m tests.soak` runs it for half an hour."""

import dataclasses

import pytest

from tests import soak, soak_engine

pytestmark = pytest.mark.slow


def test_it_counts_what_is_wrong():
    cases = soak.cases()[-3:]
    expected = soak.references(cases)
    report = soak.soak(cases, expected, minutes=0, threads=8)
    assert report.requests >= 8 and 0 < report.cancelled < report.requests and report.wrong == 0
    other = [[dataclasses.replace(x, text="x", token_ids=(-1, *x.token_ids[1:])) for x in row] for row in expected]
    report = soak.soak(cases, other, minutes=0, threads=8)
    assert report.requests <= report.wrong <= 2 * report.requests


def test_an_error_in_a_thread_ends_it():
    (case, *_) = soak.cases()
    broken = dataclasses.replace(case, options={"max_new_tokens": -1})
    with pytest.raises(ValueError, match="max_new_tokens"):
        soak.soak([broken], [[]], minutes=1, threads=4)


def test_an_engine_holds_no_more_after_many_requests():
    before, after = soak_engine.run(100, 500)
    arrays, objects, _ = after.growth(before)
    assert max(arrays, objects) <= soak_engine.MOST_GROWTH
