"""`EagleDrafter`: its guesses against the head's arithmetic, written out over the whole text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.prefill import Prefilled
from jaxspec.core.state import Context
from jaxspec.core.tree import Tree
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.draft_model import begin
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.eagle.mtp import MtpLayer
from jaxspec.heads.eagle.network import FirstEagleLayer
from jaxspec.ops.rope import Rope
from jaxspec.testing.contracts.drafter import ENDS, PROMPTS, DrafterContract, advance, before_round, init as init_rows
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract, path_to
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import published_trees, tiny
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.draft_lengths import PausesContract, Turns
from tests._fixtures.dynamic_trees import paths, search
from tests._fixtures.eagle import HEAD, TARGET, eagle_head

MOST_TEXT = 80


SMALL = eagle_head(1, ids=[0, 2, 3, 5, 8, 9])
MTP = eagle_head(3, layer=MtpLayer, capture=(2,), normalized=True)
FIRST = eagle_head(2, layer=FirstEagleLayer, capture=(2,), normalized=True)


@jax.jit
def logits_after(head, tokens, length, drafts):
    """The head's logits after the text, of which the last `drafts` tokens are its own.

    True states up to the text's last pair, its own from there on; nothing is cached.
    """
    output = TARGET(tokens, TARGET.init_cache(1, MOST_TEXT), capture=head.capture)
    states = head.fuse(head.features(TARGET, output.hidden))
    after = head.embed(TARGET, jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))))
    cache = head.init_cache(1, MOST_TEXT)
    place = length - drafts - 2  # the last true pair

    def step(number, kept):
        made, _ = head(after, kept[0], cache)
        # The state of the next pair is what the head made of this one.
        own = jnp.arange(MOST_TEXT)[None, :, None] == place + number + 1
        return jnp.where(own, jnp.roll(made, 1, axis=1), kept[0]), made

    _, made = jax.lax.fori_loop(0, drafts + 1, step, (states, states))
    return jnp.take(head.over_vocabulary(head.guesses(made))[0], length - 2, axis=0)


def probs(head, text, offset):
    """The distribution of the draft after `text`; `None` if there is no state to draft from."""
    if len(text) - offset < 2:
        return None
    padded = jnp.asarray([text + [0] * (MOST_TEXT - len(text))], jnp.int32)
    return np.array(jax.nn.softmax(logits_after(head, padded, len(text), offset)))


class EagleContract(DrafterContract):
    target = TARGET
    head = HEAD

    def guess(self, text, offset):
        return probs(self.head, text, offset)

    def check_guess(self, proposal, row, i, guess):
        assert bool(proposal.valid[row, i]) == (guess is not None)
        if guess is not None:
            super().check_guess(proposal, row, i, guess)


@pytest.mark.slow
class TestEagle(EagleContract):
    drafter = jaxspec.EagleDrafter(HEAD, k=3)


@pytest.mark.slow
class TestOneDraft(EagleContract):
    drafter = jaxspec.EagleDrafter(HEAD, k=1)


class TestDraftVocabulary(EagleContract):
    quick_tests = VARIANT_TESTS
    head = SMALL
    drafter = jaxspec.EagleDrafter(SMALL, k=3)


@pytest.mark.slow
class TestFirstEagle(EagleContract):
    """EAGLE-1: the last state alone, and the target's own head."""

    head = FIRST
    drafter = jaxspec.EagleDrafter(FIRST, k=2)


@pytest.mark.slow
class TestMtp(EagleContract):
    """A multi-token prediction module chained with itself."""

    head = MTP
    drafter = jaxspec.EagleDrafter(MTP, k=3)


@pytest.mark.slow
class TestMostLikely(EagleContract):
    drafter = jaxspec.EagleDrafter(HEAD, k=2, sampling=jaxspec.Greedy())

    def guess(self, text, offset):
        found = probs(self.head, text, offset)
        return None if found is None else int(np.argmax(found))


class TestPauses(PausesContract, EagleContract):
    """Features wait while a draft length drafts nothing, and are all processed afterwards."""

    quick_tests = ("test_of_an_ended_row_the_same_states_wait",)
    drafter = jaxspec.EagleDrafter(HEAD, k=Turns())

    def test_of_an_ended_row_the_same_states_wait(self):
        """They are the target's, of the pairs after those that were fed; all together are the text."""
        state = init_rows(TARGET, self.drafter, jnp.arange(4), ENDS)
        for _ in range(20):
            state = advance(TARGET, self.drafter, self.verifier, state)
        kept, tokens = state.drafter_state.draft_state, state.tokens
        hidden = hidden_states(tokens)
        features, waits = HEAD.features(TARGET, hidden), []
        for row in np.flatnonzero(state.done):
            fed, count = int(kept.cache.length[row]), int(kept.waiting[row])
            assert fed + count == state.length[row] - 1
            np.testing.assert_allclose(kept.features[row, :count], features[row, fed : fed + count], atol=1e-4)
            waits.append(count)
        assert len(waits) == 2 and min(waits) > 0


@jax.jit
def hidden_states(tokens):
    return TARGET(tokens, TARGET.init_cache(*tokens.shape), capture=HEAD.capture).hidden


@pytest.mark.slow
@pytest.mark.parametrize(("begins", "waits"), [(True, 9), (False, 18)])
def test_what_a_paused_head_left_is_taken_in_piece_by_piece(begins, waits):
    """Pairs of several rounds, of a row that waits and of one that has less to take in."""
    draft = jaxspec.EagleDrafter(HEAD, k=3).draft(TARGET)
    tokens, length = (
        jnp.asarray(np.random.default_rng(3).integers(0, TARGET.vocab_size, (2, 40))),
        jnp.asarray([24, 23]),
    )
    begun = length - waits
    context = Context(TARGET, None, tokens, begun + 1, jnp.zeros(2, bool), jaxspec.Greedy())
    hidden = hidden_states(tokens)
    state = begin(draft, context, Prefilled(None, hidden), 40)
    features = HEAD.features(TARGET, hidden)
    at = (begun - 1)[:, None] + jnp.arange(waits)[None]
    left = state.features.at[:, :waits].set(jnp.take_along_axis(features, at[..., None], axis=1))
    state = dataclasses.replace(state, features=left, waiting=jnp.full(2, waits))
    context = dataclasses.replace(context, length=length)
    state = draft.catch_up(state, context, jnp.asarray(begins))
    if not begins:
        assert state.waiting.tolist() == [0, 0]
        np.testing.assert_array_equal(state.cache.length, length - 1)
    window, state = draft.first(state, context)
    for row in range(2):
        expected = logits_after(HEAD, jnp.pad(tokens[row : row + 1], ((0, 0), (0, 40))), length[row], 0)
        np.testing.assert_allclose(window.logits[row], expected, atol=1e-4)


class EagleTreeContract(TreeDrafterContract):
    """Trees of either kind from a head."""

    target = TARGET
    sees_every_acceptance = False

    def test_its_model_is_traced_twice_however_many_levels_there_are(self, monkeypatch):
        state, calls = init_rows(TARGET, self.drafter, jnp.arange(4)), []
        call = EagleHead.__call__
        counted = lambda self, *args, **options: (calls.append(1), call(self, *args, **options))[1]
        monkeypatch.setattr(EagleHead, "__call__", counted)
        jax.eval_shape(lambda state: self.drafter.propose(*before_round(TARGET, self.verifier, state)), state)
        assert len(calls) == 2

    def check_node(self, proposal, row, node, expected):
        assert proposal.valid[row, node] == (expected is not None)
        super().check_node(proposal, row, node, expected)


@pytest.mark.slow
class TestTree(EagleTreeContract):
    topology = Tree((-1, 0, 0, 2, -1))
    drafter = jaxspec.TreeDrafter(HEAD, topology, jaxspec.drafters.WithoutReplacement())

    def expected(self, text, before, node):
        left = probs(HEAD, text, len(path_to(self.topology.parents, node)) - 1)
        if left is not None:
            left[before] = 0
            left /= left.sum()
        return left


@pytest.mark.slow
class TestDynamicTree(EagleTreeContract):
    drafter = jaxspec.drafters.DynamicTreeDrafter(HEAD, top_k=2, depth=3, nodes=6)

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        """All nodes at once: the chosen paths, in the order they were found."""
        for tokens, length, proposal, _, _ in rounds:
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                assert proposal.valid[row].all() == proposal.valid[row].any() == (len(text) > 1)
                if len(text) > 1:
                    after = lambda path, text=text: probs(HEAD, path, len(path) - len(text))
                    assert paths(proposal, row) == search(after, text, top_k=2, depth=3, nodes=6)


@pytest.mark.slow
def test_the_published_tree_changes_no_greedy_token():
    drafter = jaxspec.TreeDrafter(HEAD, Tree.from_paths(published_trees.EAGLE))
    assert (drafter.lengths, drafter.max_drafts) == ((25,), 5)
    run = lambda drafter: jaxspec.generate(TARGET, drafter, jnp.asarray(PROMPTS), max_new_tokens=8)
    np.testing.assert_array_equal(run(drafter).tokens, run(None).tokens)


@pytest.mark.slow
def test_full_acceptance_of_a_head_that_knows():
    """Every draft of a head whose tokens are the target's own is accepted, in every round: no pair is lost or doubled.

    Its attention and feed-forward add nothing, so that it says what follows a token; so does the target.
    """
    target = tiny.transformer(5, layers=1)
    still = lambda path, x: x * 0 if {"output", "down"} & {key.key for key in path} else x
    target = dataclasses.replace(target, params=jax.tree.map_with_path(still, target.params))
    head = eagle_head(capture=(1,), layer=FirstEagleLayer, target=target)
    params = dict(jax.tree.map_with_path(still, head.params))
    width = target.module.config.width
    # The mix passes on the token's embedding, normed as the target's last state is.
    params["mix"] = {"kernel": jnp.eye(width, 2 * width), "bias": jnp.zeros(width)}
    params["head"] = target.head
    norm = lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    table = norm(target.params["embedding"]) * target.params["final_norm"]["scale"][None]
    drafter = jaxspec.EagleDrafter(dataclasses.replace(head, params=params, embedding=table), k=3)
    found = jaxspec.generate(target, drafter, jnp.asarray(PROMPTS[:, :5]), max_new_tokens=24)
    assert found.stats.rounds.tolist() == [6] * 4


@pytest.mark.slow
def test_a_pause_longer_than_the_head_s_patience():
    """Waiting features are processed before their buffer is full."""
    drafter = jaxspec.EagleDrafter(HEAD, k=Adaptive((1.0, 9.0, 9.0), (0, 1, 3), period=40))
    state = jaxspec.init(TARGET, drafter, jnp.asarray(PROMPTS), max_new_tokens=70)
    step = jaxspec.jit_step()
    waited = 0
    for _ in range(34):
        state, _ = step(TARGET, drafter, None, state)
        waited = max(waited, int(state.drafter_state.draft_state.waiting.max()))
        kept = state.drafter_state.draft_state
        np.testing.assert_array_equal(kept.cache.length + kept.waiting, state.length - 1)
        assert (kept.waiting <= kept.features.shape[1]).all()
    assert waited > 8


@pytest.mark.parametrize(
    ("target", "head", "kind", "message"),
    [
        (
            history_model(vocab=tiny.VOCAB),
            HEAD,
            TypeError,
            "reads hidden states .* type HistoryModel",
        ),
        (TARGET, "eagle", TypeError, "needs an EagleHead, got str"),
        (tiny.transformer(layers=1), HEAD, ValueError, "layers 0, 1, 2, got a target of 1 layers"),
        (tiny.transformer(layers=2, vocab=12), HEAD, ValueError, "share one vocabulary"),
        (wide_transformer(vocab=tiny.VOCAB, ropes=(Rope(1e4),) * 1), FIRST, ValueError, "layers 2"),
    ],
)
def test_a_head_that_does_not_fit(target, head, kind, message):
    with pytest.raises(kind, match=message):
        jaxspec.generate(target, jaxspec.EagleDrafter(head, k=2), jnp.asarray(PROMPTS), max_new_tokens=2)
