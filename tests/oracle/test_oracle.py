"""The oracle sees bias: rules and key assignments that are known to be wrong do not pass it."""

import pytest

from tests.oracle.draws import Names, several_rounds
from tests.oracle.tables import pair, total_variation
from tests.oracle.token_rounds import enumerate_round, extend, outcomes

SEEN = 1e-3


def fresh(length: int) -> Names:
    return Names((("draft", length),), (("accept", length),), ("next", length))


def bias(names, *, k=1, length=3, seed=2) -> float:
    target, draft = pair("full support", 3, length + k, seed=seed)
    found = several_rounds(target, draft, k=k, length=length, names=names)
    assert sum(found.values()) == pytest.approx(1)
    return total_variation(found, target.text_law(length))


def test_fresh_draws_are_exact():
    assert bias(fresh) < 1e-9


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(lambda length: fresh(0), id="one key for every round"),
        pytest.param(lambda n: Names((("draft", n),), (("x", n),), ("x", n)), id="acceptance and next share a key"),
        pytest.param(lambda n: Names((("x", n),), (("x", n),), ("next", n)), id="draft and acceptance share a key"),
        pytest.param(lambda n: Names((("x", n),), (("a", n),), ("x", n)), id="draft and next share a key"),
        pytest.param(lambda n: Names((("draft", n),), ("a",), ("next", n)), id="one acceptance draw for all rounds"),
    ],
)
def test_reused_draws_are_seen(names):
    assert bias(names) > SEEN


def test_drawing_from_the_target_instead_of_the_residual_is_seen():
    target, draft = pair("full support", 3, 2)
    round_ = enumerate_round(target, draft, (), 1, 1)
    round_.next_laws[:, 0] = target.law(())
    assert total_variation(extend(outcomes(round_, 1), target, 2), target.text_law(2)) > SEEN


def test_a_most_likely_draft_with_a_soft_law_is_seen():
    """KerasHub's fault: [.5, .5] drafted by argmax against [.6, .4]."""
    target, draft = pair("full support", 3, 2)
    round_ = enumerate_round(target, draft, (), 1, 1)
    likely = draft.law(()).argmax()
    round_.chance[:] = round_.drafts[:, 0] == likely
    assert total_variation(extend(outcomes(round_, 1), target, 2), target.text_law(2)) > SEEN
