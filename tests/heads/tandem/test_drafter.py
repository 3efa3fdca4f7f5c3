"""`TandemDrafter`: the distributions it reports, its cache of what the target knew, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.named import drafter_of
from tests._fixtures import tiny
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.dynamic_trees import paths, search
from tests._fixtures.tandem import Reference, random_head
from tests.contracts import VARIANT_TESTS, DrafterContract
from tests.contracts.drafter import PROMPTS, ROUNDS, _init, _probe
from tests.contracts.tree_drafter import TreeDrafterContract

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
    quick_tests = (*VARIANT_TESTS, "test_the_cache_holds_what_the_target_knew_after_full_and_zero_acceptance")
    drafter = jaxspec.TandemDrafter(HEAD, k=3)

    def test_the_cache_holds_what_the_target_knew_after_full_and_zero_acceptance(self):
        """Of all tokens but the last, each at its own position; nothing of the decoder's own."""
        accepted = set()
        state = _init(self.target, self.drafter, jax.random.split(jax.random.key(5), 4), jnp.arange(4))
        for _ in range(ROUNDS):
            *_, state, info = _probe(self.target, self.drafter, state)
            accepted |= set(info.accepted.tolist())
            found, expected = state.drafter_state.draft_state, context_of(HEAD, self.target, state.tokens)
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
    drafter = jaxspec.TandemDrafter(HEAD, k=1)


@pytest.mark.slow
class TestMostLikely(TandemContract):
    drafter = jaxspec.TandemDrafter(HEAD, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        return int(np.argmax(probs(tuple(text), offset)))


@pytest.mark.slow
class TestPauses(PausesContract, TandemContract):
    """What verification brings is taken in while a draft length drafts nothing, too."""

    drafter = jaxspec.TandemDrafter(HEAD, k=Turns())


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
    assert drafter_of(HEAD, k=2) == jaxspec.TandemDrafter(HEAD, k=2)


@pytest.mark.parametrize(
    ("target", "head", "kind", "message"),
    [
        (tiny.history_model(vocab=tiny.VOCAB), HEAD, TypeError, "reads hidden states .* type HistoryModel"),
        (TARGET, "tandem", TypeError, "needs a TandemHead, got str"),
        (TARGET, random_head(TARGET, capture=(2,)), ValueError, "layers 2, got a target of 1 layers"),
        (tiny.transformer(vocab=12), HEAD, ValueError, "share one vocabulary"),
        (tiny.wide_transformer(vocab=tiny.VOCAB), HEAD, ValueError, "states of width 16, got a target of width 32"),
    ],
)
def test_a_head_that_does_not_fit(target, head, kind, message):
    with pytest.raises(kind, match=message):
        jaxspec.generate(target, jaxspec.TandemDrafter(head, k=2), jnp.asarray(PROMPTS), max_new_tokens=2)
