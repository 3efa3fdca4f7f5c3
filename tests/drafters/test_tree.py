"""`TreeDrafter`: the distribution it reports of each node, what its cache holds, and which noise it draws with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import random as keys
from jaxspec.core.tree import Tree
from jaxspec.drafters.children import MostLikely, TopAndSampled, WithoutReplacement, WithReplacement
from jaxspec.drafters.frontier import top_tokens
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.ops.rope import Rope
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS
from jaxspec.testing.contracts.tree_drafter import COUPLED, VERIFIER, TreeDrafterContract, path_to, propose
from jaxspec.testing.history_models import history_model, history_probs, nearby
from tests._fixtures import published_trees, tiny
from tests._fixtures.contract_tests import DRAFTS_TEST, VARIANT_TESTS

TARGET = TreeDrafterContract.target
DRAFT = nearby(TARGET, 0.4)
# Two children of the text; the first child has three children, the second of which goes on.
UNEVEN = Tree((-1, 0, 0, 2, 3, 0, -1, 6))


def removed(probs, before):
    """The distribution without some tokens, normalized."""
    probs = np.array(probs)
    probs[before] = 0
    return probs / probs.sum()


class TestWithoutReplacement(TreeDrafterContract):
    quick_tests = (*VARIANT_TESTS, "test_greedy_output_is_that_of_plain_decoding")
    drafter = TreeDrafter(DRAFT, UNEVEN, WithoutReplacement(), jaxspec.Sampling(temperature=1.5))

    def expected(self, text, before, node):
        return removed(history_probs(DRAFT, text, 1.5), before)


class TestTopAndSampled(TreeDrafterContract):
    """The last child of each node is drawn from what its siblings leave; an only child from everything."""

    quick_tests = DRAFTS_TEST
    drafter = TreeDrafter(DRAFT, UNEVEN, TopAndSampled(), jaxspec.Sampling(temperature=1.5))

    def expected(self, text, before, node):
        left = removed(history_probs(DRAFT, text, 1.5), before)
        last = UNEVEN.children[UNEVEN.parents[node]][-1] == node
        return left if last else np.eye(len(left))[np.argmax(left)]


class TestWithReplacement(TreeDrafterContract):
    """Siblings may be one token: then the accepted path may hold a node that was not fed."""

    quick_tests = VARIANT_TESTS
    drafter = TreeDrafter(DRAFT, Tree((-1, -1, -1, 2, 2, 4)), WithReplacement())

    def expected(self, text, before, node):
        return history_probs(DRAFT, text)


class TestTransformer(TreeDrafterContract):
    """Real keys and values, with a window that the tree's depth crosses."""

    quick_tests = DRAFTS_TEST
    model = tiny.transformer(1, windows=(3,))
    drafter = TreeDrafter(model, Tree.balanced((2, 2, 1)), WithoutReplacement())
    sees_every_acceptance = False

    def expected(self, text, before, node):
        return removed(tiny.transformer_probs(self.model, text), before)


@pytest.mark.slow
class TestTwoLayers(TestTransformer):
    """Of which only one has a window."""

    quick_tests = None
    model = tiny.transformer(1, layers=2, windows=(3, None), ropes=(Rope(1e4),) * 2)
    drafter = TreeDrafter(model, Tree.balanced((2, 2, 1)), WithoutReplacement())


def generate(drafter, **options):
    return jaxspec.generate(
        TARGET,
        drafter,
        jnp.asarray(PROMPTS),
        prompt_length=jnp.asarray(LENGTHS),
        max_new_tokens=20,
        verifier=COUPLED,
        key=jax.random.key(4),
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "sampling"),
    [
        (MostLikely(), jaxspec.Greedy()),
        (WithoutReplacement(), jaxspec.Sampling(temperature=0.8)),
        (WithReplacement(), jaxspec.Sampling(temperature=0.8)),
        (TopAndSampled(), jaxspec.Sampling(temperature=0.8)),
    ],
)
def test_the_target_as_its_own_draft_is_always_accepted(draw, sampling):
    """Every round keeps a whole path: one lost cache entry would show."""
    found = generate(TreeDrafter(TARGET, Tree.balanced((2, 2, 2)), draw), sampling=sampling)
    assert found.stats.rounds.tolist() == [5] * 4
    assert found.stats.accepted.tolist() == [15] * 4


def test_an_only_child_is_drawn_from_everything():
    """And the last of two from what the first leaves; the other places of its parent are dropped."""
    probs = jnp.broadcast_to(jnp.asarray([0.6, 0.3, 0.1]), (64, 2, 3))
    rng = VERIFIER.rng(jax.random.split(jax.random.key(0), 64), jnp.full(64, 5, jnp.int32))
    tokens, there = TopAndSampled().children(rng, jnp.int32(1), jnp.log(probs), 2, jnp.asarray([2, 1], jnp.int32))
    assert there.all() and (tokens[:, 0, 0] == 0).all()
    assert set(np.asarray(tokens[:, 0, 1]).tolist()) == {1, 2}
    assert set(np.asarray(tokens[:, 1, 0]).tolist()) == {0, 1, 2}
    one_hot = jnp.where(probs == 0.6, 0.0, -jnp.inf)
    _, there = TopAndSampled().children(rng, jnp.int32(1), one_hot, 2, jnp.asarray([2, 1], jnp.int32))
    assert there[0].tolist() == [[True, False], [True, True]]


def test_each_node_has_its_own_number_of_children():
    """Two only children below a pair: each is drawn, and is not always the most probable one."""
    tree = Tree((-1, 0, 0, 1, 2))
    proposal = propose(TreeDrafter(DRAFT, tree, TopAndSampled()), sampling=jaxspec.Sampling(temperature=3.0))
    best = np.zeros((4, 2), bool)
    for row, place in np.ndindex(best.shape):
        text, tokens = PROMPTS[row, : LENGTHS[row]].tolist(), proposal.tokens[row].tolist()
        path = [tokens[i] for i in path_to(tree.parents, tree.parents[3 + place])]
        best[row, place] = tokens[3 + place] == np.argmax(history_probs(DRAFT, text + path))
    assert proposal.valid.all() and not best.all(axis=0).any()


@pytest.mark.slow
@pytest.mark.parametrize("tree", [UNEVEN, Tree.chains(3, 1), Tree((-1, -1, 0, 1, 1, 0, 4))])
def test_the_most_likely_children_in_order(tree):
    """For any policy, and with the text's own draws left out; any order of nodes will do."""
    proposal = propose(TreeDrafter(DRAFT, tree))
    assert proposal.log_probs is None and proposal.valid.all()
    for row in range(4):
        text, tokens = PROMPTS[row, : LENGTHS[row]].tolist(), proposal.tokens[row].tolist()
        for node, rank in enumerate(tree.ranks):
            path = [tokens[i] for i in path_to(tree.parents, tree.parents[node])]
            best = np.argsort(-history_probs(DRAFT, text + path))
            assert tokens[node] == best[rank]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MEDUSA", "ZEPHYR", "EAGLE"])
def test_a_published_tree_changes_no_greedy_token(name):
    found = generate(TreeDrafter(DRAFT, Tree.from_paths(getattr(published_trees, name))), sampling=jaxspec.Greedy())
    plain = generate(None, sampling=jaxspec.Greedy())
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert (found.stats.rounds < plain.stats.rounds).all()


@pytest.mark.parametrize("vocab", [11, 512, 8000])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_of_equal_weights_the_first_are_taken(vocab, count):
    """As `top_k` does over a vocabulary that is looked through in parts, with many equals."""
    weights = np.random.default_rng(count).integers(0, 3 + vocab // 9, (4, 2, vocab)).astype(np.float32)
    best, tokens = top_tokens(jnp.asarray(weights), count)
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :count]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_array_equal(best, np.take_along_axis(weights, order, -1))


def test_a_row_at_temperature_zero_has_one_certain_path():
    """Children of probability 0 are invalid, and so are their descendants; distributions stay distributions."""
    sampling = jaxspec.Sampling(temperature=jnp.array([0.0, 1.0, 1.0, 0.0]), top_k=jnp.array([0, 2, 1, 0]))
    tree = Tree.balanced((3, 2))
    drafter = TreeDrafter(DRAFT, tree, WithoutReplacement())
    proposal = propose(drafter, sampling=sampling)
    ranks, parents = np.array(tree.ranks), np.array(tree.parents)
    for row, support in enumerate([1, 2, 1, 1]):
        there = (ranks < support) & ((parents < 0) | (ranks[parents] < support))
        np.testing.assert_array_equal(proposal.valid[row], there)
    np.testing.assert_allclose(np.exp(proposal.log_probs).sum(axis=-1), 1, atol=1e-5)


def test_each_coupled_child_is_the_target_s_next_best_draw():
    """With the shared noise, the children are the largest of distribution plus noise, at every node."""
    tree = Tree.balanced((3, 2))
    proposal = propose(TreeDrafter(TARGET, tree, WithoutReplacement()), verifier=COUPLED)
    rng = COUPLED.rng(jax.random.split(jax.random.key(2), 4), jnp.asarray(LENGTHS, jnp.int32))
    noise = np.asarray(rng.token_noise(2, tiny.VOCAB))
    for row in range(4):
        text = PROMPTS[row, : LENGTHS[row]].tolist()
        for parent, nodes in zip([*range(tree.size), -1], tree.children, strict=True):
            if nodes:
                path = [] if parent < 0 else [int(proposal.tokens[row, parent])]
                perturbed = np.log(history_probs(TARGET, text + path)) + noise[row, len(path)]
                best = np.argsort(-perturbed)[: len(nodes)]
                assert proposal.tokens[row, list(nodes)].tolist() == best.tolist()


@pytest.mark.parametrize(
    ("draw", "places"),
    # Two rows; the text and two levels with three fed places each, padded ones included.
    [(WithoutReplacement(), 2 * (1 + 2 * 3)), (WithReplacement(), 2 * (3 + 2 * 3 * 2))],
)
def test_no_two_nodes_share_noise(monkeypatch, draw, places):
    seen, draw_uniform = [], keys._uniform

    def record(key, count=None):
        jax.debug.callback(lambda data: seen.extend(map(tuple, data.reshape(-1, 2).tolist())), jax.random.key_data(key))
        return draw_uniform(key, count)

    monkeypatch.setattr(keys, "_uniform", record)
    jax.block_until_ready(propose(TreeDrafter(DRAFT, Tree.balanced((3, 1, 2)), draw), rows=2))
    jax.effects_barrier()
    assert len(seen) == len(set(seen)) == places


def test_only_independent_chains_are_alike():
    alike = lambda *options: TreeDrafter(DRAFT, *options).info.identically_distributed
    assert alike(Tree.chains(3, 2), WithReplacement())
    assert not alike(Tree.chains(3, 2), WithoutReplacement())
    assert not alike(Tree.chains(3, 2))
    assert not alike(Tree.balanced((3, 2)), WithReplacement())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: TreeDrafter(DRAFT, (-1, 0)), TypeError, r"topology must be a Tree, got \(-1, 0\); pass Tree"),
        (
            lambda: TreeDrafter(DRAFT, UNEVEN, MostLikely),
            TypeError,
            r"draw must be a Draw, got .*; pass MostLikely\(\)",
        ),
        (lambda: generate(TreeDrafter(7, UNEVEN)), TypeError, "TreeDrafter needs a Model, got int"),
        (lambda: generate(TreeDrafter(history_model(), UNEVEN)), ValueError, "share one vocabulary"),
        (lambda: generate(TreeDrafter(DRAFT, Tree.chains(12, 1))), ValueError, "12 children, the vocabulary 11 tokens"),
        (
            lambda: generate(TreeDrafter(DRAFT, UNEVEN, MostLikely(), jaxspec.Sampling())),
            ValueError,
            r"MostLikely\(\) draws nothing, so sampling would be ignored",
        ),
    ],
)
def test_bad_input(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.slow
def test_a_model_without_a_cache_takes_no_trees():
    score = lambda model, tokens: model(tokens, model.init_cache(*tokens.shape)).logits
    slow = jaxspec.from_function(score, DRAFT, vocab_size=tiny.VOCAB)
    with pytest.raises(TypeError, match="drafts a tree or several chains, which a HistoryModel cannot score"):
        generate(TreeDrafter(slow, UNEVEN))
    with pytest.raises(TypeError, match="drafts a tree or several chains, which a HistoryModel cannot score"):
        jaxspec.generate(slow, TreeDrafter(DRAFT, UNEVEN), jnp.asarray(PROMPTS), max_new_tokens=2)
    with pytest.raises(TypeError, match="drafts a tree or several chains, which a HistoryModel cannot score"):
        generate(TreeDrafter(slow, Tree.chains(3, 1)))
