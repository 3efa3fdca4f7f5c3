"""`UniVerVerifier`: trees of top tokens and sampled ones, by the paper's formulas and by enumeration."""

import numpy as np
import pytest

from jaxspec.testing.contracts.tree_verifier import EXACT, TreeVerifierContract
from jaxspec.testing.contracts.verifier import DISTRIBUTION
from jaxspec.testing.enumeration.drafting import chains, drawn_after_top, drawn_without_replacement
from jaxspec.testing.enumeration.rounds import deviation, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.testing.enumeration.tables import Table, make_table, pair
from jaxspec.verifiers.multi_draft import RecursiveRejection
from jaxspec.verifiers.traversal import descend as traverse
from jaxspec.verifiers.tree import descend as sample_and_walk
from jaxspec.verifiers.univer import UniVerVerifier, descend
from tests._fixtures.pairs import PAIRS

UNIVER = walk_rule(descend)
# Two paths of two; two top tokens and a sampled one, each of which goes on; a sampled chain below a top token.
TREES = {"two paths": chains(2, 2), "three children": (-1, -1, -1, 0, 0, 2), "three deep": (-1, -1, 0, 2, 2)}


class TestContract(TreeVerifierContract):
    verifier = UniVerVerifier()
    rule = staticmethod(UNIVER)
    certain_rule = staticmethod(walk_rule(sample_and_walk))
    ways = ("after the top", "without")
    quick_tests = ("test_one_round_keeps_the_distribution",)
    slow_tests = (*TreeVerifierContract.slow_tests, *DISTRIBUTION)


def accepted(target, draft, parents):
    """The expected number of accepted drafts, by the formulas of arXiv:2605.04543 in plain Python."""

    def ends(text, node, ratio):
        """The chances to end the round at each depth below `node`, which is entered with `ratio`; the rest fails."""
        children = [child for child, parent in enumerate(parents) if parent == node]
        wanted = target.probs(text)
        found, left = np.zeros(4), draft.probs(text).copy()
        if not children:
            found[0] = ratio
            return found
        top = [int(token) for token in np.argsort(-left, kind="stable")[: len(children) - 1] if left[token] > 0]
        left[top] = 0
        if not left.any():
            return one(text, children[: len(top)], ratio, top, None, 0.0, 1.0)
        left = left / left.sum()
        z = 1 - ratio + np.maximum(ratio * wanted - left, 0).sum()
        for token in np.flatnonzero(left).tolist():
            pass_ = min(1.0, ratio * wanted[token] / left[token])
            found += left[token] * one(text, children, ratio, top, token, pass_, z)
        return found

    def one(text, children, ratio, top, sampled, pass_, z):
        """The chances of `ends`, given the sampled child, which is accepted with `pass_`."""
        wanted = target.probs(text)
        chances = [] if sampled is None else [(children[-1], sampled, pass_)]
        scale = (1 - pass_) / z if pass_ < 1 else 0.0
        chances += [(child, token, ratio * wanted[token] * scale) for child, token in zip(children, top, strict=False)]
        found, reached, refused = np.zeros(4), 1.0, 1.0
        for child, token, chance in chances:
            entered = min(chance / refused, 1.0) if refused > 1e-13 else 0.0
            found[1:] += reached * ends((*text, token), child, entered)[:-1]
            reached, refused = reached * (1 - entered), refused - chance
        if refused > 1e-13:
            found[0] += reached * (1 - min(scale * (1 - ratio) / refused, 1.0) if pass_ < 1 else 0.0)
        return found

    chances = ends((), -1, 1.0)
    assert chances.sum() == pytest.approx(1, abs=EXACT)
    return chances @ np.arange(4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("tree", TREES)
def test_it_accepts_what_the_formulas_say(tree, name):
    target, draft = pair(name, 4, 4, seed=6)
    found = enumerate_round(target, drawn_after_top(TREES[tree], draft), UNIVER)
    assert mean_accepted(found) == pytest.approx(accepted(target, draft, TREES[tree]), abs=EXACT)
    assert deviation(found, target, 4 if tree == "three deep" else 3) < EXACT


def nearby(seed) -> tuple[Table, Table]:
    """A target of four tokens, and a draft that is two thirds target, one third noise."""
    rng = np.random.default_rng(seed)
    target = make_table(4, 3, lambda: rng.dirichlet(np.ones(4)))
    return target, Table(4, {text: (2 * probs + rng.dirichlet(np.ones(4))) / 3 for text, probs in target.rows.items()})


@pytest.mark.slow
def test_in_a_tree_of_one_long_path_draws_without_replacement_are_accepted_more():
    """The claim of `TopAndSampled`: a top token is accepted only as often as the target draws it."""
    target, draft = nearby(0)
    parents = (-1, -1, 0, 0)
    top = enumerate_round(target, drawn_after_top(parents, draft), UNIVER)
    distinct = enumerate_round(target, drawn_without_replacement(parents, draft), walk_rule(traverse))
    assert mean_accepted(top) < mean_accepted(distinct)


@pytest.mark.slow
def test_it_accepts_more_than_other_verifiers_of_as_many_drafts():
    """Two paths of two drafts, on average over ten pairs; for a single pair it may accept less."""
    parents, means = chains(2, 2), []
    for target, draft in map(nearby, range(10)):
        top, distinct = drawn_after_top(parents, draft), drawn_without_replacement(parents, draft)
        ways = ((top, descend), (top, traverse), (distinct, traverse), (distinct, RecursiveRejection().descend))
        means.append([mean_accepted(enumerate_round(target, way, walk_rule(rule))) for way, rule in ways])
    univer, in_order, traversal, recursive = np.mean(means, axis=0)
    assert univer > traversal > recursive and univer > in_order, (univer, in_order, traversal, recursive)
