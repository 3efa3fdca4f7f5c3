"""`DFlashTreeDrafter`: its nodes with `Beam` are those of a plain search, by NumPy; its calls, and its names."""

import dataclasses

import numpy as np
import pytest

import jaxspec
from jaxspec.bench.cases import Setting, load_cases
from jaxspec.heads.dflash.checkpoint import write_dflash
from jaxspec.heads.dflash.constructions.beam import Beam
from jaxspec.heads.dflash.constructions.by_cost import BestPathsByCost
from jaxspec.heads.dflash.constructions.families import Families
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures.dflash import random_head
from tests._fixtures.dflash_blocks import DFLASH, HEAD, LENGTHS, SOME, TARGET, TEXTS, Probs, propose
from tests._fixtures.dynamic_trees import paths, search

PLAIN = random_head(TARGET, seed=1, **DFLASH)
SAMPLING = jaxspec.Sampling(temperature=1.0)


def after(probs, text):
    """Returns the distribution of the token that follows a path of drafts after `text`."""
    return lambda path: probs.probs(text, len(path) - len(text), path[-1])


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
    beam = DFlashTreeDrafter(head, options["nodes"], Beam(options["top_k"]), options["depth"])
    proposal, probs = propose(beam, SAMPLING), Probs(head)
    for row, length in enumerate(LENGTHS.tolist()):
        text = TEXTS[row, :length].tolist()
        assert sorted(paths(proposal, row)) == sorted(search(after(probs, text), text, **options))
        assert proposal.valid[row].all()


def test_as_deep_as_a_block_unless_told():
    drafter = DFlashTreeDrafter(HEAD, nodes=5)
    assert drafter.max_drafts == HEAD.config.num_drafts and drafter.lengths == (5,)
    assert dataclasses.replace(drafter, depth=2).max_drafts == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"nodes": 22, "construction": Beam(3), "depth": 3},
            "nodes must be at most 21, which a top_k of 3 finds at a depth of 3",
        ),
        (
            {"nodes": 5, "construction": Beam(len(SOME) + 1)},
            f"top_k is {len(SOME) + 1}, the head guesses {len(SOME)} tokens",
        ),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"nodes": 4, "depth": 9}, "drafts at most 4 tokens in a block, got k=9"),
    ],
)
def test_trees_that_cannot_be_drafted(options, message):
    with pytest.raises(ValueError, match=message):
        DFlashTreeDrafter(HEAD, **options)


def test_other_targets_are_refused():
    drafter = DFlashTreeDrafter(HEAD, nodes=4)
    with pytest.raises(ValueError, match="head reads states of width 16, got a target of width 32"):
        jaxspec.generate(wide_transformer(), drafter, np.ones((1, 3), np.int32), max_new_tokens=2)


def test_a_tree_by_its_name(tmp_path):
    """A construction, a colon and a head; `k` is the number of nodes, of which small trees have fewer than 63."""
    write_dflash(random_head(TARGET, ids=SOME, layers=1, block_size=2, feature_norms=True), tmp_path / "head")
    name = f"ddtree:{tmp_path / 'head'}"
    drafter = jaxspec.load_drafter(name, TARGET)
    assert isinstance(drafter, DFlashTreeDrafter) and drafter.lengths == (63,) and drafter.max_drafts == 2
    assert jaxspec.load_drafter(name, TARGET, k=9).nodes == 9
    by_cost = jaxspec.load_drafter(f"caddtree:{tmp_path / 'head'}", TARGET, k=16)
    assert isinstance(by_cost.construction, BestPathsByCost) and by_cost.lengths == (2, 4, 8, 16)
    assert jaxspec.load_drafter(f"jetspec:{tmp_path / 'head'}", TARGET, k=9).construction == Families()
    for k, error, message in (
        ("adaptive", TypeError, "DFlashTreeDrafter drafts a fixed number of tokens"),
        (jaxspec.draft_length.Fixed(3), TypeError, "the k of a tree is its number of nodes, got Fixed"),
        (73, ValueError, "nodes must be at most 72"),
    ):
        with pytest.raises(error, match=message):
            jaxspec.load_drafter(name, TARGET, k=k)


def test_a_plan_tries_numbers_of_nodes(tmp_path):
    write_dflash(random_head(TARGET, ids=SOME, layers=1, feature_norms=True), tmp_path / "head")
    name = f"ddtree:{tmp_path / 'head'}"
    cases = load_cases(Setting("some", (name,), lengths=(4, 8)), TARGET)
    assert [case.label for case in cases] == ["plain", "ddtree:head, k=4", "ddtree:head, k=8"]
    halves = load_cases(Setting("some", (name,)), TARGET, halves=True)
    assert [case.drafter.lengths for case in halves[1:]] == [(31,), (63,)] and halves[1].name == name
