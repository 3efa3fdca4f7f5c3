"""`StaticEnsemble`: a drafted position has the mixture's distribution; further tests are in `test_relaxed.py`."""

import numpy as np
import pytest

from jaxspec.testing.enumeration.drafting import chain, drawn, guessed
from jaxspec.testing.enumeration.rounds import emitted_probs, enumerate_round
from jaxspec.testing.enumeration.tables import pair
from jaxspec.verifiers.ensemble import StaticEnsemble
from tests._fixtures.rules import first_token, relaxed_rule

EXACT = 1e-9

RULE = StaticEnsemble(0.7)
LEAVES = relaxed_rule(RULE)


@pytest.mark.parametrize(
    "name",
    ["full support", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zeros in the draft", "certain draft"))],
)
def test_a_drafted_position_has_the_distribution_of_the_mixture(name):
    """Sampled drafts, and a certain one, whose distribution has all its mass on one token."""
    target, draft = pair(name, 4, 2, seed=2)
    for drafter, probs in (
        (drawn(chain(1), draft), draft.probs(())),
        (guessed(chain(1), lambda place: 2, 4), np.eye(4)[2]),
    ):
        round_ = enumerate_round(target, drafter, LEAVES)
        expected = 0.7 * target.probs(()) + 0.3 * probs
        np.testing.assert_allclose(first_token(round_, 4), expected, atol=EXACT)


@pytest.mark.slow
def test_a_draft_that_the_target_excludes_is_never_emitted():
    """So the output is no longer the mixture, and deviates by less."""
    target, draft = pair("zeros in the target", 4, 2, seed=2)
    round_ = enumerate_round(target, drawn(chain(1), draft), LEAVES)
    excluded = np.flatnonzero(target.probs(()) == 0).tolist()
    assert excluded and not sum(chance for text, chance in emitted_probs(round_).items() if text[0] in excluded)
    distance = lambda probs: 0.5 * np.abs(probs - target.probs(())).sum()
    assert distance(first_token(round_, 4)) < 0.3 * distance(draft.probs(())) - 1e-3
