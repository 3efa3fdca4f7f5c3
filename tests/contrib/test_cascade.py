"""`CascadeDrafter`: the drafts of its model alone, in fewer passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.cascade import CascadeDrafter
from jaxspec.core.state import Context
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.history_models import HistoryModel, history_model, history_probs, nearby
from tests._fixtures.contract_tests import VARIANT_TESTS

# A target and a draft that soon repeat themselves, so that guesses are right, wrong and missing.
TARGET = history_model(3, vocab=3, scale=1.5)
DRAFT = nearby(TARGET, 0.4)
NGRAM = jaxspec.NGramDrafter(k=2, min_ngram=1)
SLOTS = 40


@pytest.mark.slow
class TestContract(DrafterContract):
    quick_tests = VARIANT_TESTS
    target = TARGET
    drafter = CascadeDrafter(DRAFT, NGRAM, k=3)

    def guess(self, text, offset):
        return history_probs(DRAFT, text)


@pytest.mark.slow
class TestMoreGuessesThanDrafts(TestContract):
    drafter = CascadeDrafter(DRAFT, jaxspec.SuffixDrafter(k=5), k=2)


@functools.partial(jax.jit, static_argnames="verifier")
def propose(drafter, verifier, tokens, length, done, sampling):
    context = Context(None, None, tokens, length, done, sampling)
    rng = verifier.rng(jax.random.split(jax.random.key(7), tokens.shape[0]), length)
    return drafter.propose(rng, drafter.init(context, None, SLOTS), context)


def texts():
    """Rows that repeat themselves and rows that do not, of every length."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 3, size=(12, 30))
    tokens[::2] = np.tile([0, 1, 2, 2, 1], 6)
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(rng.permutation(12) * 2 + 1, jnp.int32)


@pytest.mark.parametrize(
    ("verifier", "sampling"),
    [
        pytest.param(jaxspec.TokenVerifier(), jaxspec.Greedy(), id="own-greedy", marks=pytest.mark.slow),
        pytest.param(jaxspec.CoupledVerifier(), jaxspec.Greedy(), id="shared-greedy", marks=pytest.mark.slow),
        pytest.param(
            jaxspec.TokenVerifier(), jaxspec.Sampling(0.6, top_p=0.9), id="own-sampled", marks=pytest.mark.slow
        ),
        pytest.param(jaxspec.CoupledVerifier(), jaxspec.Sampling(0.6, top_p=0.9), id="shared-sampled"),
    ],
)
def test_the_drafts_are_those_of_the_model_alone(verifier, sampling):
    tokens, length = texts()
    done = jnp.zeros(12, jnp.bool_).at[3].set(True)
    arguments = (verifier, tokens, length, done, sampling)
    found, state = propose(CascadeDrafter(DRAFT, NGRAM, k=6), *arguments)
    alone, expected = propose(jaxspec.ModelDrafter(DRAFT, k=6), *arguments)
    np.testing.assert_array_equal(found.valid, alone.valid)
    live = [row for row in range(12) if row != 3]
    np.testing.assert_array_equal(found.tokens[jnp.array(live)], alone.tokens[jnp.array(live)])
    if not sampling.greedy:
        np.testing.assert_allclose(np.exp(found.log_probs)[live], np.exp(alone.log_probs)[live], atol=2e-6)
    for row in live:
        held = int(expected.draft_state.cache.length[row])
        assert state.cache.length[row] == held
        np.testing.assert_array_equal(state.cache.tokens[row, :held], expected.draft_state.cache.tokens[row, :held])


@pytest.mark.slow
def test_passes_are_fewer_and_narrow_where_nothing_is_guessed(monkeypatch):
    widths = []
    call = HistoryModel.__call__

    def counting(self, tokens, cache, **options):
        jax.debug.callback(lambda width=tokens.shape[1]: widths.append(width))
        return call(self, tokens, cache, **options)

    monkeypatch.setattr(HistoryModel, "__call__", counting)
    # A draft that says 0 1 0 1 ... after any text.
    steady = HistoryModel(jnp.asarray([[0, 9, 0], [9, 0, 0], [9, 0, 0]], jnp.float32), jnp.zeros((3, 3)))
    length = jnp.array([5], jnp.int32)
    for text, expected in (([0, 1, 0, 1, 0], [6, 6]), ([1, 2, 2, 2, 0], [2, 2, 2, 6])):
        tokens = jnp.zeros((1, 30), jnp.int32).at[0, :5].set(jnp.array(text))
        context = Context(None, None, tokens, length, jnp.zeros(1, jnp.bool_), jaxspec.Greedy())
        drafter = CascadeDrafter(steady, jaxspec.NGramDrafter(k=4, min_ngram=2), k=6)
        state = drafter.init(context, None, SLOTS)
        rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(0), 1), length)
        jax.effects_barrier()
        widths.clear()
        proposal, _ = jax.jit(drafter.propose)(rng, state, context)
        jax.effects_barrier()
        assert proposal.tokens[0].tolist() == [1, 0, 1, 0, 1, 0]
        assert widths == expected


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cheap": jaxspec.ModelDrafter(DRAFT)}, TypeError, "needs a lookup drafter as cheap, got ModelDrafter"),
        ({"cheap": jaxspec.NGramDrafter(k=0)}, TypeError, "needs a lookup drafter as cheap"),
        ({"k": 0}, ValueError, "CascadeDrafter needs k of at least 1, got 0"),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        CascadeDrafter(**({"model": DRAFT, "cheap": NGRAM} | options))
