"""`UnionDrafter`: chains of several drafters, each with its own distribution, noise and cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.union import UnionDrafter
from jaxspec.core.state import Context, Verdict
from jaxspec.core.tree import Tree
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.base import NoDrafter
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from jaxspec.testing.history_models import history_model, history_probs, nearby
from jaxspec.verifiers.tree import TreeVerifier
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.ngrams import search

TARGET = history_model(3, vocab=3, scale=1.5)
FIRST, SECOND = nearby(TARGET, 0.5), nearby(TARGET, 0.9, seed=10)


class TestModelsAndText(TreeDrafterContract):
    quick_tests = VARIANT_TESTS
    target = TARGET
    drafter = UnionDrafter(
        (
            jaxspec.ModelDrafter(FIRST, k=2),
            jaxspec.NGramDrafter(k=3, max_ngram=3, min_ngram=2),
            jaxspec.ModelDrafter(SECOND, k=3, sampling=jaxspec.Sampling(temperature=2.0)),
        )
    )
    # A model that follows its own chain is fed what it missed, then the window, then its drafts.
    most_traces = 2 * 3

    def expected(self, text, before, node):
        if node < 2:
            return history_probs(FIRST, text)
        if node >= 5:
            return history_probs(SECOND, text, 2.0)
        offset = node - 2
        text = text[: len(text) - offset]
        last = search(text, 3, 2)
        return None if last is None else np.eye(3)[text[last + 1 :][offset % (len(text) - last - 1)]]

    def test_other_drafters_chains_are_accepted_too(self, rounds):
        """The case that caches must survive: a path that some model did not draft."""
        starts, longer = (0, 2, 5), np.zeros(3, int)
        for tokens, length, proposal, _, info in rounds:
            for row in range(4):
                accepted = int(info.accepted[row])
                kept = info.tokens[row, :accepted].tolist()
                followed = [proposal.tokens[row, at : at + accepted].tolist() == kept for at in starts]
                longer += [accepted > 0 and not same for same in followed]
        assert (longer[[0, 2]] > 0).all()


@pytest.mark.slow
def test_without_a_model_nothing_is_drawn():
    union = UnionDrafter((jaxspec.NGramDrafter(k=2, min_ngram=1), jaxspec.NGramDrafter(k=3)))
    assert union.deterministic and union.info.context_length is None and (union.max_drafts, union.lengths) == (3, (5,))
    options = {"prompt_length": jnp.asarray(LENGTHS), "max_new_tokens": 30}
    plain, found = (jaxspec.generate(TARGET, d, jnp.asarray(PROMPTS % 3), **options) for d in (None, union))
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert found.stats.accepted.sum() > 0


@pytest.mark.slow
def test_each_drafter_hears_of_its_own_chain():
    """A path of three from both chains: the first drafted its beginning, the second all of it."""
    heard = []

    class Listening(jaxspec.NGramDrafter):
        def observe(self, state, context, verdict, hidden):
            heard.append((verdict.accepted.tolist(), verdict.next_token.tolist()))
            return state

    union = UnionDrafter((Listening(k=2), Listening(k=4), Listening(k=1)))
    tokens = jnp.array([[1, 5, 1, 2, 3, 4, 1]] * 3, jnp.int32)
    valid = jnp.ones((3, 7), jnp.bool_).at[2, 2:].set(False)
    path = jnp.array([[0, 3, 4, 0], [0, 3, 4, 5], [0, 0, 0, 0]], jnp.int32)
    verdict = Verdict(jnp.array([3, 4, 0], jnp.int32), jnp.array([9, 8, 7], jnp.int32), path)
    state = jaxspec.contrib.union.UnionState(((), (), ()), tokens, valid)
    context = Context(None, None, tokens, jnp.full(3, 7, jnp.int32), jnp.zeros(3, jnp.bool_), None)
    union.observe(state, context, verdict, ())
    assert heard == [([1, 1, 0], [2, 2, 7]), ([3, 4, 0], [9, 8, 7]), ([1, 1, 0], [2, 2, 7])]


def test_drafters_of_one_model_draw_with_noise_of_their_own():
    """Two equal drafters agree no more often than independent draws do."""
    union = UnionDrafter((jaxspec.ModelDrafter(FIRST, k=1, sampling=jaxspec.Sampling(temperature=8.0)),) * 2)
    prompt = jnp.tile(jnp.asarray(PROMPTS[:1] % 3, jnp.int32), (2000, 1))
    keys = jax.random.split(jax.random.key(0), 2000)

    @jax.jit
    def propose(union):
        state = jaxspec.init(TARGET, union, prompt, max_new_tokens=4, sampling=jaxspec.Sampling(), key=keys)
        context = state.context.of(TARGET)
        return union.propose(TreeVerifier().rng(keys, state.length), state.drafter_state, context)[0].tokens

    tokens = np.asarray(propose(union))
    chance = (history_probs(FIRST, (PROMPTS[0] % 3).tolist(), 8.0) ** 2).sum()
    # Five standard deviations: a false alarm once in 1.7 million runs.
    assert abs((tokens[:, 0] == tokens[:, 1]).mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / 2000)


@pytest.mark.parametrize(
    ("drafters", "error", "text"),
    [
        ((), ValueError, r"needs drafters, got none; pass \(ModelDrafter"),
        ((FIRST,), TypeError, "needs drafters, got HistoryModel; pass"),
        ((jaxspec.NGramDrafter,), TypeError, "got the class NGramDrafter itself"),
        ((TreeDrafter(FIRST, Tree.chains(2, 2)),), ValueError, "got TreeDrafter, which drafts a tree; pass chain"),
        ((jaxspec.ModelDrafter(FIRST, k=2, num_drafts=2),), ValueError, "got ModelDrafter, which drafts a tree"),
        ((NoDrafter(),), ValueError, "got NoDrafter with k=0; leave it out"),
        (
            (jaxspec.ModelDrafter(FIRST, k=Adaptive((1.0, 1.2), lengths=(0, 2))),),
            ValueError,
            "got ModelDrafter with Adaptive; pass an integer k",
        ),
    ],
)
def test_bad_input(drafters, error, text):
    with pytest.raises(error, match=text):
        UnionDrafter(drafters)


def test_a_drafter_that_reads_the_target_s_states_is_refused():
    class Reading(jaxspec.NGramDrafter):
        capture = (0,)

    with pytest.raises(ValueError, match="Reading reads the target's states along its own drafts"):
        UnionDrafter((Reading(k=2),))


def test_drafters_are_checked_against_the_target():
    union = UnionDrafter((jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(history_model(0, vocab=5), k=2)))
    with pytest.raises(ValueError, match="must share one vocabulary"):
        jaxspec.generate(TARGET, union, jnp.asarray(PROMPTS % 3), prompt_length=LENGTHS, max_new_tokens=2)
