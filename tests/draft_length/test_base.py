"""Draft lengths: their formulas, the values they may depend on, and the passes that a round then runs."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.state import Context
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import DraftLength, Fixed
from jaxspec.draft_length.early_stop import ConfidenceStop, CumulativeConfidence, EntropyStop
from jaxspec.testing.history_models import history_model, history_probs
from tests._fixtures.draft_lengths import Altered

VOCAB, K, ROWS = 5, 4, 64
DRAFT = history_model(1, vocab=VOCAB, scale=1.5)
TOKENS = jax.random.randint(jax.random.key(7), (ROWS, 16), 0, VOCAB, jnp.int32)
LENGTH = jnp.arange(ROWS, dtype=jnp.int32) % 9 + 2
DRAFT_LENGTHS = {
    "fixed": Fixed(K),
    "confidence": ConfidenceStop(K, threshold=0.5),
    "entropy": EntropyStop(K, threshold=0.5),
    "adaptive": Adaptive((1.0, 1.2, 1.5), (0, 2, K)),
}


@jax.jit
def propose(drafter, at=-1, acceptance=None, sampling=jaxspec.Sampling()):  # noqa: B008
    """One proposal for `ROWS` random texts, where the draft at `at` is drawn with other noise."""
    context = Context(None, None, TOKENS, LENGTH, jnp.zeros(ROWS, jnp.bool_), sampling)
    state = drafter.init(context, None, 16)
    if acceptance is not None:
        acceptance = jnp.full_like(state.length_state.acceptance, acceptance)
        state = dataclasses.replace(state, length_state=dataclasses.replace(state.length_state, acceptance=acceptance))
    rng = Altered(jax.random.split(jax.random.key(3), ROWS), LENGTH, at=at)
    return drafter.propose(rng, state, context)[0].dense()


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFT_LENGTHS)
def test_no_draft_decides_whether_it_is_submitted(name):
    """Another draft at position i leaves everything up to and with i's validity as it was."""
    drafter = jaxspec.ModelDrafter(DRAFT, k=DRAFT_LENGTHS[name])
    acceptance = 0.9 if name == "adaptive" else None  # it drafts the most
    before = propose(drafter, -1, acceptance)
    later = 0
    for at in range(K):
        after = propose(drafter, at, acceptance)
        np.testing.assert_array_equal(before.valid[:, : at + 1], after.valid[:, : at + 1])
        submitted = np.asarray(before.valid[:, at])
        np.testing.assert_allclose(before.log_probs[submitted, : at + 1], after.log_probs[submitted, : at + 1])
        np.testing.assert_array_equal(before.tokens[:, :at], after.tokens[:, :at])
        assert (before.tokens[submitted, at] != after.tokens[submitted, at]).any()
        later += (before.valid != after.valid).sum()
    assert (later > 0) == DRAFT_LENGTHS[name].reads_log_probs
    assert len({int(n) for n in before.valid.sum(1)}) > 1 or name in ("fixed", "adaptive")


@pytest.mark.parametrize("length", [DraftLength, Fixed, ConfidenceStop, CumulativeConfidence, EntropyStop, Adaptive])
def test_the_calls_show_no_draft_length_the_draft_it_decides_about(length):
    parameters = lambda name: list(inspect.signature(getattr(length, name)).parameters)  # noqa: E731
    assert parameters("longest") == ["self", "state", "draftable", "active"]
    assert parameters("should_verify") == ["self", "state", "cum_accept_prob"]
    assert parameters("should_draft") == ["self", "state", "log_probs"]
    assert parameters("continue_") == ["self", "state", "log_prob"]
    assert parameters("observe") == ["self", "state", "submitted", "accepted", "draftable", "active"]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jaxspec.Sampling(), jaxspec.Sampling(0.0), jaxspec.Greedy()], ids=repr)
def test_stops_against_their_formulas(sampling):
    """Where the policy is certain, the draft model's own distribution decides."""
    drafts = np.asarray(propose(jaxspec.ModelDrafter(DRAFT, k=K), sampling=sampling).tokens)
    text = lambda row, i: [*np.asarray(TOKENS)[row, : LENGTH[row]].tolist(), *drafts[row, :i].tolist()]  # noqa: E731
    probs = np.array([[history_probs(DRAFT, text(row, i)) for i in range(K)] for row in range(ROWS)])
    sure = np.take_along_axis(probs, drafts[..., None], axis=2)[..., 0] >= 0.5
    expected = true_before_false(np.pad(sure, ((0, 0), (1, 0)), constant_values=True)[:, :K])
    found = propose(jaxspec.ModelDrafter(DRAFT, k=ConfidenceStop(K, 0.5)), sampling=sampling)
    np.testing.assert_array_equal(found.valid, expected)
    entropy = -(probs * np.log(probs)).sum(-1)
    found = propose(jaxspec.ModelDrafter(DRAFT, k=EntropyStop(K, 0.55)), sampling=sampling)
    np.testing.assert_array_equal(found.valid, true_before_false(1 - np.sqrt(0.2 * entropy) >= 0.55))
    assert 0 < found.valid.sum() < found.valid.size > expected.sum()


def true_before_false(flags):
    return np.cumprod(flags, axis=1).astype(bool)


def test_the_entropy_threshold_moves_as_in_draft_and_verify():
    length = EntropyStop(4, threshold=0.5, goal=0.7, step=0.2, decay=0.6, smoothing=0.5)
    rng = np.random.default_rng(0)
    state, threshold, acceptance = length.init(5), np.full(5, 0.5), np.full(5, 0.7)
    for _ in range(30):
        submitted, live = rng.integers(0, 5, size=5), rng.random(5) < 0.8
        accepted = rng.integers(0, submitted + 1)
        live = jnp.asarray(live)
        state = length.observe(state, *(jnp.asarray(x, jnp.int32) for x in (submitted, accepted)), live, live)
        for row in np.flatnonzero(live):
            if submitted[row]:
                acceptance[row] = 0.6 * acceptance[row] + 0.4 * accepted[row] / submitted[row]
            up = submitted[row] > 0 and acceptance[row] <= 0.7
            threshold[row] = np.clip(threshold[row] + 0.5 * (0.2 if up else -0.2), 0, 1)
        np.testing.assert_allclose(state.threshold, threshold, atol=1e-6)
        np.testing.assert_allclose(state.acceptance, acceptance, atol=1e-6)


@pytest.mark.parametrize("policy", [jaxspec.Sampling(), jaxspec.Greedy()], ids=repr)
def test_what_was_not_drawn_is_still_a_distribution(policy):
    found = propose(jaxspec.ModelDrafter(DRAFT, k=EntropyStop(K, threshold=1.0)), sampling=policy)
    assert not found.valid.any() and not found.tokens.any()
    if not policy.greedy:
        np.testing.assert_allclose(np.exp(found.log_probs).sum(-1), 1, atol=1e-5)


def test_an_unsure_draft_stays_and_ends_the_round():
    found = propose(jaxspec.ModelDrafter(DRAFT, k=ConfidenceStop(K, threshold=1.0)))
    np.testing.assert_array_equal(found.valid, [[True] + [False] * (K - 1)] * ROWS)


@pytest.mark.parametrize("length", DRAFT_LENGTHS.values(), ids=DRAFT_LENGTHS)
def test_a_drafter_keeps_its_k_as_it_was_given(length):
    for drafter in (
        jaxspec.ModelDrafter(DRAFT, k=length),
        dataclasses.replace(jaxspec.ModelDrafter(DRAFT, k=length)),
    ):
        assert drafter.k is drafter.draft_length is length and drafter.max_drafts == K
        assert drafter.lengths == length.lengths
    leaves, tree = jax.tree.flatten(drafter)
    assert jax.tree.unflatten(tree, leaves).lengths == length.lengths
    # Transformations rebuild a pytree with anything as leaves.
    for leaf in (None, True, 0, object()):
        assert jax.tree.unflatten(tree, [leaf] * len(leaves)).max_drafts == K
    assert jax.tree.map(jnp.shape, drafter).max_drafts == K


def test_lengths_of_an_integer():
    assert [Fixed(n).lengths for n in (0, 5)] == [(0,), (5,)]
    assert [EntropyStop(n).lengths for n in (0, 1, 2, 5, 8)] == [(0,), (0, 1), (0, 2), (0, 2, 4, 5), (0, 2, 4, 8)]
    assert [ConfidenceStop(n).lengths for n in (1, 2, 8)] == [(1,), (1, 2), (1, 2, 4, 8)]
    assert jaxspec.NGramDrafter(k=Adaptive((1.0, 1.2), (2, 5))).lengths == (0, 2, 5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: jaxspec.ModelDrafter(DRAFT, k=Fixed), TypeError, "k must be a static integer, got"),
        (lambda: jaxspec.NGramDrafter(k="adaptive"), TypeError, "k must be a static integer, got str"),
        (lambda: jaxspec.NGramDrafter(k=EntropyStop(4)), ValueError, "EntropyStop stops by the distribution"),
        (lambda: jaxspec.NGramDrafter(k=ConfidenceStop(4)), ValueError, "pass NGramDrafter.k=Adaptive"),
        (lambda: Fixed(-1), ValueError, "k must be at least 0"),
        (lambda: EntropyStop((0, 4, 4)), ValueError, "lengths must rise, got .0, 4, 4.; pass .0, 4."),
        (lambda: EntropyStop((0, -4)), ValueError, "k must be at least 0, got -4"),
        (lambda: EntropyStop("4"), TypeError, "an integer or a tuple of them, got '4'"),
        (lambda: EntropyStop(4, kappa=-1), ValueError, "EntropyStop needs kappa at least 0, got -1"),
        (lambda: EntropyStop(4, goal=1.5), ValueError, "EntropyStop needs goal between 0 and 1, got 1.5"),
        (lambda: generate(EntropyStop(4, threshold=2.0)), ValueError, "threshold between 0 and 1, got 2.0"),
        (lambda: generate(ConfidenceStop(4, threshold=-0.1)), ValueError, "threshold between 0 and 1, got -0.1"),
        (lambda: generate(ConfidenceStop(4, threshold=jnp.ones(2))), ValueError, "one threshold for all rows"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def generate(length):
    drafter = jaxspec.ModelDrafter(DRAFT, k=length)
    return jaxspec.generate(DRAFT, drafter, TOKENS, max_new_tokens=3)
