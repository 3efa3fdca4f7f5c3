"""`TandemDrafter`: the distributions it reports, its cache of the target's states, and the calls it rejects."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.contracts.drafter import PROMPTS, ROUNDS, DrafterContract, init, probe
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.text.names import drafter_of
from tests._fixtures import tiny
from tests._fixtures.contract_tests import DRAFTS_TEST
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.dynamic_trees import paths, search
from tests._fixtures.tandem import Reference, random_head

TARGET = tiny.transformer(0, sharpness=4.0)
SOME = (0, 1, 2, 4, 5, 7, 8, 10)
HEAD = random_head(TARGET, ids=SOME, seed=4)


@functools.cache
def probs(text: tuple[int, ...], offset: int):
    """The distribution of the draft after `text`, whose last `offset` tokens are drafts, by NumPy."""
    known = len(text) - offset - 1
    hidden = full_pass(TARGET, jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32))
    states = [np.asarray(hidden[i][0, :known], np.float64) for i in HEAD.capture]
    embedded = np.asarray(TARGET.params["embedding"], np.float64)[list(text[known:])]
    return Reference(HEAD).probs(states, embedded)


@jax.jit
def full_pass(target, tokens):
    return target(tokens, target.init_cache(1, tokens.shape[1]), capture=(0, 1)).hidden


class TandemContract(DrafterContract):
    """Guesses are those of the network in NumPy, over the target's states of the text but for its last token."""

    target = TARGET

    def guess(self, text, offset):
        return probs(tuple(text), offset)


class TestTandem(TandemContract):
    quick_tests = (*DRAFTS_TEST, "test_the_cache_holds_what_the_target_knew_after_full_and_zero_acceptance")
    drafter = jaxspec.contrib.TandemDrafter(HEAD, k=3)

    def test_the_cache_holds_what_the_target_knew_after_full_and_zero_acceptance(self):
        """Of all tokens but the last, each at its own position; nothing of the decoder's own."""
        accepted = set()
        state = init(self.target, self.drafter, jnp.arange(4))
        for _ in range(ROUNDS):
            *_, state, info = probe(self.target, self.drafter, self.verifier, state)
            accepted |= set(info.accepted.tolist())
            found, expected = state.drafter_state.draft_state.cache, context_of(HEAD, self.target, state.tokens)
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
class TestOneDraft(TandemContract):
    drafter = jaxspec.contrib.TandemDrafter(HEAD, k=1)


@pytest.mark.slow
class TestMostLikely(TandemContract):
    drafter = jaxspec.contrib.TandemDrafter(HEAD, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        return int(np.argmax(probs(tuple(text), offset)))


@pytest.mark.slow
class TestPauses(PausesContract, TandemContract):
    """Verification updates the drafter even in rounds whose draft length is 0."""

    drafter = jaxspec.contrib.TandemDrafter(HEAD, k=Turns())


@pytest.mark.slow
class TestDynamicTree(TreeDrafterContract):
    target = TARGET
    sees_every_acceptance = False
    drafter = jaxspec.drafters.DynamicTreeDrafter(HEAD, top_k=2, depth=3, nodes=6)
    test_its_model_is_traced_twice_however_many_levels_there_are = None

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        """All nodes at once: the chosen paths, in the order they were found."""
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                after = lambda path, text=text: probs(tuple(path), len(path) - len(text))
                assert paths(proposal, row) == search(after, text, top_k=2, depth=3, nodes=6)


def test_it_is_the_drafter_of_its_heads():
    assert drafter_of(HEAD, k=2) == jaxspec.contrib.TandemDrafter(HEAD, k=2)


@pytest.mark.parametrize(
    ("target", "head", "kind", "message"),
    [
        (history_model(vocab=tiny.VOCAB), HEAD, TypeError, "reads hidden states .* type HistoryModel"),
        (TARGET, "tandem", TypeError, "needs a TandemHead, got str"),
        (TARGET, random_head(TARGET, capture=(2,)), ValueError, "layers 2, got a target of 1 layers"),
        (tiny.transformer(vocab=12), HEAD, ValueError, "share one vocabulary"),
        (wide_transformer(vocab=tiny.VOCAB), HEAD, ValueError, "states of width 16, got a target of width 32"),
    ],
)
def test_a_head_that_does_not_fit(target, head, kind, message):
    with pytest.raises(kind, match=message):
        jaxspec.generate(target, jaxspec.contrib.TandemDrafter(head, k=2), jnp.asarray(PROMPTS), max_new_tokens=2)
