"""`DFlashDrafter`: the distributions it reports, its cache of context, confidence, and calls it rejects."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.early_stop import CumulativeConfidence
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.testing.contracts.drafter import ROUNDS, DrafterContract, init, probe
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.dflash import config, random_head
from tests._fixtures.dflash_blocks import (
    DFLASH,
    HEAD,
    LENGTHS,
    ROWS,
    SOME,
    TARGET,
    TEXTS,
    Probs,
    propose,
)
from tests._fixtures.draft_lengths import PausesContract, Turns


class BlockContract(DrafterContract):
    """Guesses are those of the network in NumPy, over the target's states of the whole text."""

    target = TARGET

    @classmethod
    @functools.cache
    def reference(cls):
        return Probs(cls.drafter.head)

    def guess(self, text, offset):
        return self.reference().probs(text[: len(text) - offset], offset, text[-1])


class TestDSpark(BlockContract):
    quick_tests = (*VARIANT_TESTS, "test_the_cache_holds_the_text_after_full_and_zero_acceptance")
    drafter = DFlashDrafter(HEAD, k=3)

    def test_the_cache_holds_the_text_after_full_and_zero_acceptance(self):
        """The context of all tokens but the last, each at its own position."""
        head, accepted = self.drafter.head, set()
        state = init(self.target, self.drafter, jnp.arange(4))
        for _ in range(ROUNDS):
            *_, state, info = probe(self.target, self.drafter, self.verifier, state)
            accepted |= set(info.accepted.tolist())
            found, expected = state.drafter_state.cache, context_of(head, self.target, state.tokens)
            np.testing.assert_array_equal(found.length, state.length - 1)
            for row, length in enumerate(found.length.tolist()):
                for ours, theirs in ((found.keys, expected.keys), (found.values, expected.values)):
                    np.testing.assert_allclose(ours[:, row, :, :length], theirs[:, row, :, :length], atol=1e-5)
        assert {0, 3} <= accepted


@jax.jit
def context_of(head, target, tokens):
    batch = tokens.shape[0]
    hidden = target(tokens, target.init_cache(batch, 1), capture=head.capture).hidden
    return head.context(hidden, jnp.zeros(batch, jnp.int32))


@pytest.mark.slow
class TestPauses(PausesContract, BlockContract):
    """It rests and drafts again. Whole generations do not change."""

    drafter = DFlashDrafter(HEAD, k=Turns())
    test_greedy_output_is_that_of_plain_decoding = None
    test_budgets_down_to_nothing = None
    test_nothing_follows_a_stop_token = None
    test_new_values_do_not_trace_again = None


def drafted(proposal):
    """Each row, its text, a draft's number, and the token before it."""
    for row, length in enumerate(LENGTHS.tolist()):
        text, drafts = TEXTS[row, :length].tolist(), proposal.tokens[row].tolist()
        for i in range(len(drafts)):
            yield row, text, i, [*text, *drafts][length + i - 1]


def test_dflash_drafts_from_the_places_of_its_masks():
    """Without a Markov head, and with a causal layer that sees a window."""
    drafter = DFlashDrafter(random_head(TARGET, seed=1, **DFLASH))
    assert drafter.max_drafts == drafter.head.config.block_size - 1
    found, probs = propose(drafter, jaxspec.Sampling()), Probs(drafter.head)
    for row, text, i, before in drafted(found):
        np.testing.assert_allclose(np.exp(found.log_probs[row, i]), probs.probs(text, i, before), atol=2e-5)


def test_each_draft_of_a_block_is_drawn_with_its_own_noise():
    drafter = DFlashDrafter(random_head(TARGET, seed=1, **DFLASH))
    before = propose(drafter, jaxspec.Sampling()).tokens
    for at in range(drafter.max_drafts):
        after = propose(drafter, jaxspec.Sampling(), at).tokens
        assert np.flatnonzero((before != after).any(axis=0)).tolist() == [at]


CONFIDENT = DFlashDrafter(HEAD, k=CumulativeConfidence(3, threshold=0.25))


def test_the_product_of_the_estimates_decides_what_is_submitted():
    found, probs, chances = propose(CONFIDENT, jaxspec.Sampling()), Probs(HEAD), np.ones(ROWS)
    for row, text, i, before in drafted(found):
        chances[row] *= probs.trust(text, i, before)
        assert abs(chances[row] - 0.25) > 1e-4
        assert bool(found.valid[row, i]) == (chances[row] >= 0.25)
        if chances[row] < 0.25:
            chances[row] = 0  # drafts that were not submitted show no token


def test_no_draft_decides_whether_it_is_submitted():
    """Another draft at position i leaves everything up to and with i's validity as it was."""
    before, later = propose(CONFIDENT, jaxspec.Sampling()), 0
    for at in range(3):
        after = propose(CONFIDENT, jaxspec.Sampling(), at)
        np.testing.assert_array_equal(before.valid[:, : at + 1], after.valid[:, : at + 1])
        later += (before.valid != after.valid).sum()
    assert later > 0
    assert len({int(n) for n in before.valid.sum(1)}) > 2


@pytest.mark.slow
def test_greedy_drafts_are_the_argmax_and_report_no_distribution():
    found = propose(DFlashDrafter(HEAD), jaxspec.Greedy())
    certain = propose(DFlashDrafter(HEAD), jaxspec.Sampling(0.0))
    assert found.log_probs is None and certain.log_probs is not None
    np.testing.assert_array_equal(found.tokens, certain.tokens)
    np.testing.assert_array_equal(
        jnp.take_along_axis(certain.log_probs, certain.tokens[..., None], axis=-1), jnp.zeros((ROWS, 4, 1))
    )


@pytest.mark.slow
def test_a_policy_of_its_own_is_reported():
    warm, hot = (propose(DFlashDrafter(HEAD, sampling=jaxspec.Sampling(t)), jaxspec.Sampling()) for t in (1.0, 2.0))
    # Of the first draft, the same logits, halved.
    known = warm.log_probs[:, 0, np.array(SOME)]
    np.testing.assert_allclose(hot.log_probs[:, 0, np.array(SOME)], jax.nn.log_softmax(known / 2), atol=1e-5)


@pytest.mark.slow
def test_calibration_moves_the_estimates():
    """A large divisor makes every estimate an even chance: with a threshold of 0.2, two drafts each."""
    even = dataclasses.replace(HEAD, confidence_scale=jnp.full(4, 1e6))
    found = propose(DFlashDrafter(even, k=CumulativeConfidence(4, threshold=0.2)), jaxspec.Sampling())
    np.testing.assert_array_equal(found.valid, np.arange(4)[None] < np.full((ROWS, 1), 2))


class Headless:
    """Not a head."""


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"head": Headless()},
            TypeError,
            "DFlashDrafter needs a DFlashHead, got Headless; jaxspec.load_head makes one",
        ),
        ({"head": HEAD, "k": 5}, ValueError, "drafts at most 4 tokens in a block, got k=5"),
        ({"head": HEAD, "k": 2.0}, TypeError, "k must be a static integer"),
        (
            {"head": random_head(TARGET), "k": CumulativeConfidence(3)},
            ValueError,
            "CumulativeConfidence stops by a drafter's own confidence, but this drafter has no confidence head",
        ),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        DFlashDrafter(**options)


@pytest.mark.parametrize(
    ("target", "options", "error", "text"),
    [
        (history_model(0, vocab=tiny.VOCAB), {}, TypeError, "hidden states and the embedding of a LanguageModel"),
        (tiny.transformer(0), {}, ValueError, "reads the states entering layers 2, 0, got a target of 1"),
        (tiny.transformer(0, layers=2, vocab=12), {}, ValueError, "must share one vocabulary"),
        (wide_transformer(vocab=11), {"capture": (1, 0)}, ValueError, "width 16, got a target of width 32"),
        (TARGET, {"sampling": jaxspec.Sampling(np.ones(2))}, ValueError, "one value for all rows"),
        (TARGET, {"k": CumulativeConfidence(3, threshold=1.5)}, ValueError, "threshold between 0 and 1, got 1.5"),
    ],
)
def test_a_target_that_does_not_fit(target, options, error, text):
    head = random_head(TARGET, capture=options.get("capture", (2, 0)), confidence="place")
    options = {name: value for name, value in options.items() if name != "capture"}
    with pytest.raises(error, match=text):
        DFlashDrafter(head, **options).check(target)


@pytest.mark.parametrize("drafter", [ModelDrafter, NGramDrafter])
def test_other_drafters_have_no_confidence(drafter):
    model = (TARGET,) if drafter is ModelDrafter else ()
    with pytest.raises(ValueError, match="but this drafter has no confidence head"):
        drafter(*model, k=CumulativeConfidence(3))


def test_shapes_that_no_network_has():
    with pytest.raises(ValueError, match="a block must predict at least one token, got block_size=1"):
        config(TARGET, vocab=11, block_size=1, first_predicts=False)
    with pytest.raises(ValueError, match="needs a markov_rank above 0"):
        config(TARGET, vocab=11, confidence="place and token")
