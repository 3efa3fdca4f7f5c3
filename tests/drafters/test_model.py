"""`ModelDrafter`: the distribution it reports, and what its cache holds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.state import Context, Verdict
from jaxspec.draft_length.early_stop import ConfidenceStop, EntropyStop
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.history_models import HistoryModel, history_probs, nearby
from tests._fixtures import tiny
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.draft_lengths import AdjustableContract, PausesContract, Turns

TARGET = DrafterContract.target
DRAFT = nearby(TARGET, 0.4)


class TestHistoryDraft(DrafterContract):
    slow_tests = (*DrafterContract.slow_tests, "test_greedy_output_is_that_of_plain_decoding")
    drafter = jaxspec.ModelDrafter(DRAFT, k=3)

    def guess(self, text, offset):
        return history_probs(DRAFT, text)


@pytest.mark.slow
class TestOneDraft(DrafterContract):
    drafter = jaxspec.ModelDrafter(DRAFT, k=1)

    def guess(self, text, offset):
        return history_probs(DRAFT, text)


class TestColderDraft(DrafterContract):
    """A drafter may draw from any distribution, as long as it reports it."""

    quick_tests = VARIANT_TESTS
    drafter = jaxspec.ModelDrafter(DRAFT, k=2, sampling=jaxspec.Sampling(temperature=0.5))

    def guess(self, text, offset):
        return history_probs(DRAFT, text, temperature=0.5)


@pytest.mark.slow
class TestMostLikelyDraft(DrafterContract):
    """Greedy drafts report no distribution: they are certain."""

    drafter = jaxspec.ModelDrafter(DRAFT, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        return int(np.argmax(history_probs(DRAFT, text)))


@pytest.mark.slow
class TestTransformerDraft(DrafterContract):
    model = tiny.transformer(1)
    drafter = jaxspec.ModelDrafter(model, k=3)
    sees_every_acceptance = False

    def guess(self, text, offset):
        padded = jnp.asarray([text + [0] * (64 - len(text))], jnp.int32)
        logits = score(self.model, padded)[0, len(text) - 1]
        return np.asarray(jax.nn.softmax(logits))


@pytest.mark.slow
class TestConfidenceStop(AdjustableContract, TestHistoryDraft):
    drafter = jaxspec.ModelDrafter(DRAFT, k=ConfidenceStop(3, threshold=0.3))


@pytest.mark.slow
class TestEntropyStop(AdjustableContract, TestHistoryDraft):
    drafter = jaxspec.ModelDrafter(DRAFT, k=EntropyStop((0, 1, 3), threshold=0.5, step=0.0))


@pytest.mark.slow
class TestPauses(PausesContract, TestHistoryDraft):
    """The draft model rests and catches up."""

    quick_tests = VARIANT_TESTS
    drafter = jaxspec.ModelDrafter(DRAFT, k=Turns())


@jax.jit
def score(model, tokens):
    return model(tokens, model.init_cache(1, tokens.shape[1])).logits


@pytest.mark.slow
@pytest.mark.parametrize("draft", [TARGET, DRAFT, HistoryModel(-TARGET.a, -TARGET.b)])
def test_the_cache_holds_the_text_whatever_was_accepted(draft):
    """After full, partial and no acceptance, it has all but the last two committed tokens."""
    prompt, length = jnp.asarray([[3, 1, 4], [1, 0, 0]], jnp.int32), jnp.array([3, 1], jnp.int32)
    drafter = jaxspec.ModelDrafter(draft, k=3)
    options = {"prompt_length": length, "max_new_tokens": 30}
    state = jax.jit(lambda drafter: jaxspec.init(TARGET, drafter, prompt, **options))(drafter)
    for _ in range(6):
        before = state
        state, info = jaxspec.jit_step()(TARGET, drafter, jaxspec.TokenVerifier(), state)
        for row in range(2):
            held = int(before.length[row]) + min(int(info.accepted[row]), 2)
            kept = state.drafter_state.draft_state.cache
            np.testing.assert_array_equal(kept.tokens[row, :held], state.tokens[row, :held])
            assert held >= int(state.length[row]) - 2
            # The target's cache: all but the last committed token, each at its own position.
            fed = int(state.length[row]) - 1
            assert int(state.cache.length[row]) == fed
            np.testing.assert_array_equal(state.cache.tokens[row, :fed], state.tokens[row, :fed])
            np.testing.assert_array_equal(state.cache.positions[row, :fed], np.arange(fed))


@pytest.mark.slow
def test_no_drafts_is_plain_decoding():
    prompt = jnp.asarray([[3, 1, 4]], jnp.int32)
    plain = jaxspec.generate(TARGET, None, prompt, max_new_tokens=12)
    found = jaxspec.generate(TARGET, jaxspec.ModelDrafter(DRAFT, k=0), prompt, max_new_tokens=12)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.rounds.tolist() == [12]
    assert found.stats.drafted.tolist() == [0]


SLOTS, K = 60, 3


@jax.jit
def draft_after_a_pause(drafter, tokens, held, length, done):
    """Returns drafts for the text from a cache that stopped at `held` tokens, and from a new one."""
    rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(3), tokens.shape[0]), length)
    context = lambda tokens, length: Context(None, None, tokens, length, done, jaxspec.Sampling())  # noqa: E731
    fresh = drafter.init(context(tokens, length), None, tokens.shape[1])
    # Prefill feeds more than it keeps: what the cache does not hold must not lie there by chance.
    slots = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    known = jnp.where(slots < held[:, None], tokens, 0)
    stale = drafter.init(context(known, held + 1), None, tokens.shape[1])
    now = context(tokens, length)
    return drafter.propose(rng, stale, now), drafter.propose(rng, fresh, now)


@pytest.mark.parametrize(
    ("draft", "width"),
    [
        pytest.param(DRAFT, SLOTS, id="long"),
        pytest.param(DRAFT, 9, id="shorter than a chunk"),
        pytest.param(tiny.transformer(1), 256, id="a full cache", marks=pytest.mark.slow),
    ],
)
def test_it_catches_up_after_any_pause(draft, width):
    """Rows lag by anything from nothing to the whole text, up to the last slots of the buffer."""
    rng = np.random.default_rng(width)
    tokens = jnp.asarray(rng.integers(0, tiny.VOCAB, size=(7, width)), jnp.int32)
    last = width - K
    length = jnp.array([last, 3, 1, last, last, 2, last], jnp.int32)
    held = jnp.array([0, 2, 0, last - 1, last // 2, 0, last - 5], jnp.int32)
    drafter, done = jaxspec.ModelDrafter(draft, k=K), jnp.zeros(7, jnp.bool_)
    (found, state), (expected, _) = draft_after_a_pause(drafter, tokens, held, length, done)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=2e-5)
    assert state.draft_state.cache.length.tolist() == (length + K - 1).tolist()


def test_the_cache_counts_only_what_was_kept_of_its_own_drafts():
    """As where another drafter's tokens were emitted: the next round is fed what this one missed."""
    length, done = jnp.array([9, 1], jnp.int32), jnp.zeros(2, jnp.bool_)
    drafter = jaxspec.ModelDrafter(DRAFT, k=K)
    context = lambda tokens, length: Context(None, None, tokens, length, done, jaxspec.Sampling())  # noqa: E731
    propose, init = jax.jit(drafter.propose), jax.jit(lambda context: drafter.init(context, None, SLOTS))
    for accepted in (0, 1, K):
        rng = np.random.default_rng(accepted)
        tokens = jnp.asarray(rng.integers(0, tiny.VOCAB, size=(2, SLOTS)), jnp.int32)
        rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(4), 2), length)
        proposal, state = propose(rng, init(context(tokens, length)), context(tokens, length))
        # Of its drafts the first `accepted` were right, then came six tokens from elsewhere.
        for row, at in enumerate(length.tolist()):
            tokens = tokens.at[row, at : at + accepted].set(proposal.tokens[row, :accepted])
        verdict = Verdict(jnp.full(2, accepted, jnp.int32), length)
        state = drafter.observe(state, context(tokens, length), verdict, ())
        held = np.asarray(length) + min(accepted, K - 1)
        assert state.draft_state.cache.length.tolist() == held.tolist()
        for row in range(2):
            np.testing.assert_array_equal(state.draft_state.cache.tokens[row, : held[row]], tokens[row, : held[row]])
        after = context(tokens, length + accepted + 6)
        (found, _), (expected, _) = propose(rng, state, after), propose(rng, init(after), after)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=2e-5)


def test_where_it_submitted_nothing_none_of_its_own_drafts_are_kept():
    """Its drafts came from elsewhere: tokens it was fed alongside the other rows' drafts are not its text."""
    length, done = jnp.array([9, 1], jnp.int32), jnp.zeros(2, jnp.bool_)
    drafter = jaxspec.ModelDrafter(DRAFT, k=K)
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, tiny.VOCAB, size=(2, SLOTS)), jnp.int32)
    context = Context(None, None, tokens, length, done, jaxspec.Sampling())
    rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(4), 2), length)
    _, state = jax.jit(drafter.propose)(rng, drafter.init(context, None, SLOTS), context)
    state = dataclasses.replace(state, submitted=jnp.array([0, K], jnp.int32))
    state = drafter.observe(state, context, Verdict(jnp.full(2, 1, jnp.int32), length), ())
    assert state.draft_state.cache.length.tolist() == [9, 2]


def test_what_the_cache_of_an_ended_row_lacks_counts_as_lacking():
    """Even if it is fed and drafts alongside a row that goes on; a row that outgrew the context keeps one token."""
    drafter, done = jaxspec.ModelDrafter(DRAFT, k=K), jnp.array([True, False, True])
    length, held = jnp.array([9, 9, 1], jnp.int32), jnp.array([4, 8, 7], jnp.int32)
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, tiny.VOCAB, size=(3, SLOTS)), jnp.int32)
    context = Context(TARGET, None, tokens, length, done, jaxspec.Sampling())
    rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(4), 3), length)
    state = drafter.init(dataclasses.replace(context, length=held + 1), None, SLOTS)
    _, state = jax.jit(drafter.propose)(rng, state, context)
    state = drafter.observe(state, context, Verdict(jnp.array([0, K, 0], jnp.int32), length), ())
    cache = state.draft_state.cache
    assert cache.length.tolist() == [4, 9 + K - 1, 1]
    for row, count in ((0, 4), (1, 9), (2, 1)):
        np.testing.assert_array_equal(cache.tokens[row, :count], tokens[row, :count])


def test_finished_rows_are_not_caught_up(monkeypatch):
    """A row that ended long ago has missed the others' whole text, and costs nothing."""
    drafter = jaxspec.ModelDrafter(DRAFT, k=K)
    tokens = jnp.zeros((2, SLOTS), jnp.int32)
    held, length = jnp.array([0, 29], jnp.int32), jnp.array([30, 30], jnp.int32)
    context = Context(None, None, tokens, length, jnp.array([True, False]), jaxspec.Sampling())
    rng = jaxspec.TokenVerifier().rng(jax.random.split(jax.random.key(4), 2), length)
    state = drafter.init(dataclasses.replace(context, length=held + 1), None, SLOTS)
    widths = []
    call = HistoryModel.__call__

    def counting(self, tokens, cache, **options):
        jax.debug.callback(lambda width=tokens.shape[1]: widths.append(width))
        return call(self, tokens, cache, **options)

    monkeypatch.setattr(HistoryModel, "__call__", counting)
    proposal, _ = drafter.propose(rng, state, context)
    jax.effects_barrier()
    assert widths == [2, 1, 1]
    assert proposal.valid.tolist() == [[False] * K, [True] * K]
