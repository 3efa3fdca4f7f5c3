"""`Cactus`: its formula, its bound, and the case in which it emits the draft's distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Proposal
from jaxspec.testing.enumeration.drafting import chain, drawn
from jaxspec.testing.enumeration.rounds import enumerate_round, mean_accepted
from jaxspec.testing.enumeration.tables import make_table
from jaxspec.verifiers.cactus import Cactus
from jaxspec.verifiers.relaxed import relaxed_chain
from tests._fixtures.rules import first_token, relaxed_rule

EXACT = 1e-9


@pytest.mark.slow
def test_the_counterexample_accepts_everything():
    """No bound on each of its distributions bounds the output: it is the draft's, at a total variation of 0.3."""
    target, draft = (make_table(3, 2, lambda probs=probs: probs) for probs in ([0.6, 0.3, 0.1], [0.3, 0.5, 0.2]))
    round_ = enumerate_round(target, drawn(chain(1), draft), relaxed_rule(Cactus(0.1)))
    assert mean_accepted(round_) == pytest.approx(1, abs=EXACT)
    np.testing.assert_allclose(first_token(round_, 3), [0.3, 0.5, 0.2], atol=EXACT)


@pytest.mark.parametrize("delta", [0.1, *(pytest.param(delta, marks=pytest.mark.slow) for delta in (1e-3, 1.0))])
def test_against_the_formula(delta):
    random = np.random.default_rng(1)
    target, draft = random.dirichlet(np.full(6, 0.5), size=(2, 200))
    target[::3, 0] = 0
    target = target / target.sum(1, keepdims=True)
    tokens = random.integers(6, size=(200, 1))
    raised = np.minimum(target + np.sqrt(2 * delta * target * (1 - target)), 1)
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        both = jnp.log(jnp.stack([target, target], axis=1))
        proposal = Proposal(jnp.asarray(tokens, jnp.int32), jnp.ones((200, 1), jnp.bool_), jnp.log(draft)[:, None])
        found = relaxed_chain(Cactus(delta), proposal, both)
    at = lambda probs: np.take_along_axis(probs, tokens, axis=1)
    np.testing.assert_allclose(np.exp(found.log_acceptance), np.minimum(at(raised) / at(draft), 1), atol=EXACT)
    bounds = (raised - target).sum(1), 0.5 * np.abs(target - draft).sum(1)
    deviation = np.asarray(found.deviation)[:, 0]
    for bound in bounds:
        assert (deviation <= bound + EXACT).all()
