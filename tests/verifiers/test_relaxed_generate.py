"""`RelaxedVerifier` in the loop: calls it rejects, and what its results report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.lantern import Neighborhood
from jaxspec.core.state import Proposal
from jaxspec.drafters.base import Drafter
from jaxspec.testing.history_models import history_model, nearby
from jaxspec.verifiers.relaxed import Lenience, RelaxedVerifier
from jaxspec.verifiers.typical import Typical
from tests._fixtures import tiny

VOCAB = 4
NEIGHBORS = jnp.array([[1, 2], [0, 3], [3, -1], [2, 1]], jnp.int32)


class Branches(Drafter):
    """A tree that is certain once the last token is known: two children, each with one child."""

    max_drafts = 2
    tree = True
    deterministic = True
    lengths = (4,)

    def init(self, context, prefilled, slots):
        return ()

    def propose(self, rng, state, context):
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        tokens = (last + jnp.arange(1, 5, dtype=jnp.int32)[None]) % tiny.VOCAB
        parents = jnp.broadcast_to(jnp.array([[-1, -1, 0, 1]], jnp.int32), tokens.shape)
        return Proposal(tokens, jnp.ones(tokens.shape, jnp.bool_), None, parents, 2), state


jax.tree_util.register_static(Branches)


@pytest.mark.parametrize("rule", [Lenience(0.5), Neighborhood(NEIGHBORS, 0.5)])
def test_rules_for_chains_refuse_trees(rule):
    verifier = RelaxedVerifier(rule)
    with pytest.raises(ValueError, match=f"{type(rule).__name__} relaxes .* chain of drafts, got Branches"):
        verifier.check(Branches())
    tokens = jnp.zeros((1, 1), jnp.int32)
    tree = Proposal(tokens, tokens == 0, None, tokens - 1, 1)
    with pytest.raises(ValueError, match="proposal that branches"):
        verifier.verify(verifier.rng(jax.random.key(0)[None], tokens[0]), tree, jnp.zeros((1, 2, VOCAB)))
    verifier.check(jaxspec.NGramDrafter(k=2))
    RelaxedVerifier(Typical()).check(Branches())


TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
PROMPT = jnp.asarray([[1, 2, 3, 1, 2], [2, 1, 0, 4, 2]], jnp.int32)
RING = jnp.array([[(i + 1) % tiny.VOCAB, (i - 1) % tiny.VOCAB] for i in range(tiny.VOCAB)], jnp.int32)
OPTIONS = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(1.0), "max_new_tokens": 24}


def test_the_caller_must_agree():
    with pytest.raises(ValueError, match="RelaxedVerifier does not keep the target's distribution; pass lossy=True"):
        jaxspec.generate(TARGET, jaxspec.NGramDrafter(k=2), PROMPT, verifier=RelaxedVerifier(Typical()), **OPTIONS)


DRAFTERS = {
    "model": lambda: jaxspec.ModelDrafter(nearby(TARGET, 0.5), k=3),
    "n-gram": lambda: jaxspec.NGramDrafter(k=3, min_ngram=1),
    "tree": Branches,
}
CASES = [("model", Lenience(0.3)), ("n-gram", Neighborhood(RING, 0.4)), ("tree", Typical())]


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "rule"), CASES, ids=[name for name, _ in CASES])
def test_the_result_says_how_far_it_is_off(drafter, rule):
    models = (TARGET, DRAFTERS[drafter](), PROMPT)
    result = jaxspec.generate(*models, verifier=RelaxedVerifier(rule), lossy=True, **OPTIONS)
    assert not result.lossless
    assert (np.asarray(result.length) == 24).all()
    assert 0 < result.measured_total_variation <= 1
    assert result.stats.deviation.dtype == jnp.float32


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.slow] * (case[0] != "tree")) for case in CASES],
)
def test_what_a_budget_or_a_stop_token_cuts_is_not_measured(drafter, rule):
    """For any length, each new token counts once, so the mean is a total variation."""
    drafter, verifier = DRAFTERS[drafter](), RelaxedVerifier(rule)

    @jax.jit
    def run(budget, stop):
        options = OPTIONS | {"max_new_tokens": budget, "stop_tokens": stop, "capacity": 40}
        return jaxspec.generate(TARGET, drafter, PROMPT, verifier=verifier, lossy=True, **options)

    never = jnp.array([-1], jnp.int32)
    sums = []
    for budget in (1, 2, 3):
        sums.append(np.asarray(run(jnp.int32(budget), never).stats.deviation))
        assert (sums[-1] <= budget + 1e-6).all()
    assert (np.diff(sums, axis=0) >= -1e-6).all() and (np.diff(sums, axis=0) <= 1 + 1e-6).all()
    whole = run(jnp.int32(24), never)
    result = run(jnp.int32(24), whole.tokens[0, :1])
    assert result.length[0] == 1
    np.testing.assert_allclose(result.stats.deviation[0], sums[0][0], atol=1e-6)


@pytest.mark.slow
def test_finish_says_that_a_verifier_was_lossy():
    options = OPTIONS | {"max_new_tokens": 4}
    drafter, step = jaxspec.NGramDrafter(k=2, min_ngram=1), jaxspec.jit_step()
    state = jaxspec.init(TARGET, drafter, PROMPT, **options)
    assert jaxspec.finish(state).lossless
    state, _ = step(TARGET, drafter, RelaxedVerifier(Typical()), state, lossy=True)
    assert not jaxspec.finish(state).lossless
    with pytest.raises(ValueError, match="pass lossless="):
        jax.jit(jaxspec.finish)(state)
    assert not jax.jit(lambda state: jaxspec.finish(state, lossless=False))(state).lossless


@pytest.mark.slow
def test_exact_verification_measures_nothing():
    result = jaxspec.generate(TARGET, jaxspec.NGramDrafter(k=3), PROMPT, **OPTIONS)
    assert result.lossless
    assert result.measured_total_variation == 0


@pytest.mark.slow
def test_greedy_decoding_is_not_relaxed():
    options = OPTIONS | {"sampling": jaxspec.Greedy()}
    plain = jaxspec.generate(TARGET, None, PROMPT, **options)
    verifier = RelaxedVerifier(Lenience(0.01))
    found = jaxspec.generate(TARGET, jaxspec.NGramDrafter(k=3), PROMPT, verifier=verifier, lossy=True, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.measured_total_variation == 0
