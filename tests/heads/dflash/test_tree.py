"""`DFlashTreeDrafter`: its nodes are those of a plain search over the head's own distributions, by NumPy."""

import dataclasses

import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.contract_tests import DRAFTS_TEST
from tests._fixtures.dflash import random_head
from tests._fixtures.dflash_blocks import DFLASH, HEAD, LENGTHS, SOME, TARGET, TEXTS, Probs, propose
from tests._fixtures.dynamic_trees import paths, search

PLAIN = random_head(TARGET, seed=1, **DFLASH)
SAMPLING = jaxspec.Sampling(temperature=1.0)


def after(probs, text):
    """Returns the distribution of the token that follows a path of drafts after `text`."""
    return lambda path: probs.probs(text, len(path) - len(text), path[-1])


class TestContract(TreeDrafterContract):
    quick_tests = DRAFTS_TEST
    target = TARGET
    drafter = DFlashTreeDrafter(HEAD, nodes=15, top_k=4, depth=2)
    # No model drafts: a head does, in one pass.
    test_its_model_is_traced_twice_however_many_levels_there_are = None

    def test_the_reported_distribution_is_that_of_the_drafts(self, rounds):
        """All nodes at once: the chosen paths, in the order they were found."""
        probs, shapes = Probs(HEAD), set()
        for tokens, length, proposal, _, _ in rounds:
            assert proposal.log_probs is None
            for row in range(4):
                text = tokens[row, : length[row]].tolist()
                assert paths(proposal, row) == search(after(probs, text), text, top_k=4, depth=2, nodes=15)
                shapes.add(tuple(proposal.parents[row].tolist()))
        assert len(shapes) > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "options"),
    [
        (HEAD, {"top_k": 4, "depth": 2, "nodes": 20}),
        (HEAD, {"top_k": 1, "depth": 3, "nodes": 3}),
        (PLAIN, {"top_k": 3, "depth": 3, "nodes": 12}),
        (PLAIN, {"top_k": 4, "depth": 1, "nodes": 3}),
    ],
    ids=["DSpark", "a chain", "DFlash", "one place"],
)
def test_the_nodes_are_those_of_a_plain_search(head, options):
    proposal, probs = propose(DFlashTreeDrafter(head, **options), SAMPLING), Probs(head)
    for row, length in enumerate(LENGTHS.tolist()):
        text = TEXTS[row, :length].tolist()
        assert paths(proposal, row) == search(after(probs, text), text, **options)
        assert proposal.valid[row].all()


def test_as_deep_as_a_block_unless_told():
    drafter = DFlashTreeDrafter(HEAD, nodes=5, top_k=3)
    assert drafter.max_drafts == HEAD.config.num_drafts and drafter.lengths == (5,)
    assert dataclasses.replace(drafter, depth=2).max_drafts == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 22, "top_k": 3, "depth": 3}, "nodes must be at most 21, which a top_k of 3 finds at a depth of 3"),
        ({"nodes": 5, "top_k": len(SOME) + 1}, f"top_k is {len(SOME) + 1}, the head guesses {len(SOME)} tokens"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"nodes": 4, "top_k": 3, "depth": 9}, "drafts at most 4 tokens in a block, got k=9"),
    ],
)
def test_trees_that_cannot_be_drafted(options, message):
    with pytest.raises(ValueError, match=message):
        DFlashTreeDrafter(HEAD, **options)


def test_other_targets_are_refused():
    drafter = DFlashTreeDrafter(HEAD, nodes=4, top_k=2)
    with pytest.raises(ValueError, match="head reads states of width 16, got a target of width 32"):
        jaxspec.generate(wide_transformer(), drafter, np.ones((1, 3), np.int32), max_new_tokens=2)
