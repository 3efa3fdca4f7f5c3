"""`DynamicTreeDrafter`: the chosen nodes against a plain search, ties included."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter, rerank
from jaxspec.ops.rope import Rope
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract, propose
from jaxspec.testing.history_models import HistoryModel, history_probs, nearby
from tests._fixtures import tiny
from tests._fixtures.contract_tests import DRAFTS_TEST
from tests._fixtures.dynamic_trees import paths, search

TARGET = TreeDrafterContract.target
DRAFT = nearby(TARGET, 0.4)
# Distributions with many equals: tokens come in groups that are equally likely after any text.
GROUPED = HistoryModel(jnp.tile(jnp.array([2.0, 2.0, 0.0, 0.0, 2.0, 1.0, 1.0]), (7, 1)), jnp.zeros((7, 7)))


def history(model, temperature=1.0):
    return lambda text: history_probs(model, text, temperature)


class TestContract(TreeDrafterContract):
    quick_tests = DRAFTS_TEST
    drafter = DynamicTreeDrafter(DRAFT, top_k=3, depth=3, nodes=9)
    options = {"top_k": 3, "depth": 3, "nodes": 9}

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        """All nodes at once: the chosen paths, in the order they were found."""
        shapes = set()
        for tokens, length, proposal, _, _ in rounds:
            assert proposal.log_probs is None and proposal.valid.all()
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                assert paths(proposal, row) == search(history(DRAFT), text, **self.options)
                shapes.add(tuple(proposal.parents[row].tolist()))
        assert len(shapes) > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({"top_k": 4, "depth": 4, "nodes": 52}, 4.0),
        ({"top_k": 2, "depth": 4, "nodes": 10}, 1.0),
        ({"top_k": 4, "depth": 1, "nodes": 3}, 1.0),
        ({"top_k": 3, "depth": 2, "nodes": 6}, 0.5),
    ],
)
@pytest.mark.parametrize(
    "model", [pytest.param(DRAFT, id="all differ"), pytest.param(GROUPED, id="ties", marks=pytest.mark.slow)]
)
def test_the_nodes_are_those_of_a_plain_search(model, options, temperature):
    sampling = None if temperature == 1 else jaxspec.Sampling(temperature)
    proposal = propose(DynamicTreeDrafter(model, **options, sampling=sampling))
    for row in range(4):
        text = np.asarray(PROMPTS[row, : LENGTHS[row]] % model.vocab_size).tolist()
        assert paths(proposal, row) == search(history(model, temperature), text, **options)


@pytest.mark.slow
def test_a_transformer_finds_them_too():
    """Real keys and values, in windows that paths reach across; another tree in each row."""
    model = tiny.transformer(1, layers=2, windows=(2, None), ropes=(Rope(1e4),) * 2)
    options = {"top_k": 3, "depth": 4, "nodes": 30}
    proposal = propose(DynamicTreeDrafter(model, **options))
    for row in range(4):
        text = PROMPTS[row, : LENGTHS[row]].tolist()
        assert paths(proposal, row) == search(lambda text: tiny.transformer_probs(model, text), text, **options)


def test_paths_that_cannot_be_are_not_submitted():
    """A policy that keeps two tokens leaves a binary tree: the rest is invalid, and below it all."""
    drafter = DynamicTreeDrafter(DRAFT, top_k=3, depth=2, nodes=12, sampling=jaxspec.Sampling(top_k=2))
    proposal = propose(drafter)
    assert (proposal.valid.sum(axis=1) == 6).all()
    for row, node in itertools.product(range(4), range(12)):
        parent = int(proposal.parents[row, node])
        assert not proposal.valid[row, node] or parent < 0 or proposal.valid[row, parent]


@pytest.mark.parametrize("seed", range(5))
def test_a_reranked_tree_holds_every_parent(seed):
    """Random trees where many a child's score equals its parent's."""
    rng = np.random.default_rng(seed)
    count, chosen_count = 20, 8
    parents, scores = np.full((6, count), -1), np.zeros((6, count))
    for row, node in itertools.product(range(6), range(count)):
        parents[row, node] = rng.integers(-1, node)
        above = scores[row, parents[row, node]] if parents[row, node] >= 0 else 0.0
        scores[row, node] = above - rng.integers(0, 2)
    chosen, found = jax.device_get(
        rerank(jnp.asarray(scores, jnp.float32), jnp.asarray(parents, jnp.int32), chosen_count)
    )
    for row in range(6):
        best = sorted(range(count), key=lambda node: (-scores[row, node], node))[:chosen_count]
        assert chosen[row].tolist() == sorted(best)
        above = [parents[row, node] for node in chosen[row]]
        assert [chosen[row, i] if i >= 0 else -1 for i in found[row]] == above


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"depth": True}, TypeError, "depth must be an integer, got True"),
        ({"top_k": 2, "depth": 2, "nodes": 7}, ValueError, "nodes must be at most 6, which a top_k of 2 finds"),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        DynamicTreeDrafter(DRAFT, **options)


def test_more_children_than_tokens():
    drafter = DynamicTreeDrafter(DRAFT, top_k=12, depth=2, nodes=13)
    with pytest.raises(ValueError, match="top_k is 12, the vocabulary has 11 tokens"):
        jaxspec.generate(TARGET, drafter, jnp.asarray(PROMPTS), max_new_tokens=2)
