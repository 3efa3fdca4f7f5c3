"""`TraversalVerifier`: block verification on a chain, and at least as good as top-down on trees."""

import pytest

from jaxspec.testing.contracts.tree_verifier import EXACT, TreeVerifierContract
from jaxspec.testing.contracts.verifier import DISTRIBUTION
from jaxspec.testing.enumeration.drafting import chain, chains, drawn, drawn_without_replacement
from jaxspec.testing.enumeration.formulas import block_accepted
from jaxspec.testing.enumeration.rounds import emitted_probs, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.testing.enumeration.several_rounds import KeyNames, several_rounds
from jaxspec.testing.enumeration.tables import pair, total_variation
from jaxspec.verifiers.multi_draft import RecursiveRejection
from jaxspec.verifiers.traversal import TraversalVerifier, descend
from jaxspec.verifiers.tree import descend as sample_and_walk
from tests._fixtures.pairs import PAIRS
from tests._fixtures.rules import block_rule

TRAVERSAL = walk_rule(descend)


class TestContract(TreeVerifierContract):
    verifier = TraversalVerifier()
    rule = staticmethod(TRAVERSAL)
    certain_rule = staticmethod(walk_rule(sample_and_walk))
    slow_tests = (*TreeVerifierContract.slow_tests, *DISTRIBUTION)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_chain_is_verified_as_a_block(name, k):
    target, draft = pair(name, 3, k + 1)
    found, block = (enumerate_round(target, drawn(chain(k), draft), rule) for rule in (TRAVERSAL, block_rule))
    assert mean_accepted(found) == pytest.approx(block_accepted(target, draft, k), abs=EXACT)
    assert total_variation(emitted_probs(found), emitted_probs(block)) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("parents", [(-1, -1), chains(2, 2), (-1, -1, 0, 0, 1, 1)])
def test_without_replacement_it_accepts_at_least_what_going_down_does(name, parents):
    target, draft = pair(name, 3, 3, seed=9)
    drafter = drawn_without_replacement(parents, draft)
    down = enumerate_round(target, drafter, walk_rule(RecursiveRejection().descend))
    assert mean_accepted(enumerate_round(target, drafter, TRAVERSAL)) >= mean_accepted(down) - EXACT


@pytest.mark.slow
def test_draws_keyed_by_absolute_position_are_seen():
    """The decision looks at drafts after the cut: drawn again with the same key, they are biased."""
    target, draft = pair("full support", 3, 5, seed=2)
    parents = chains(2, 2)
    fixed = lambda n: KeyNames(
        tuple(("draft", n + node % 2, node // 2) for node in range(4)),
        tuple(("accept", n + node % 2, node // 2) for node in range(4)),
        ("next", n),
    )
    found = several_rounds(target, drawn(parents, draft), TRAVERSAL, length=3, names=fixed)
    assert total_variation(found, target.text_probs(3)) > 1e-3
