"""Prompts take their share of the time, and no more."""

import pytest

from jaxspec.serving.share import Share


@pytest.mark.parametrize("share", [0.2, 0.5, 0.75])
def test_prompts_take_their_share(share):
    one, fed, decoded = Share(share), 0.0, 0.0
    while fed + decoded < 100.0:
        if one.allows:
            one.fed(0.7)
            fed += 0.7
        else:
            one.decoded(0.01)
            decoded += 0.01
    assert fed / (fed + decoded) == pytest.approx(share, abs=0.05)


def test_with_a_share_of_one_prompts_come_first():
    one = Share(1.0)
    one.fed(100.0)
    assert one.allows


def test_a_debt_is_kept_and_a_credit_is_not():
    one = Share(0.5)
    one.decoded(100.0)
    one.fed(2.0)
    one.decoded(1.0)
    assert not one.allows
    one.forgive()
    assert one.allows
