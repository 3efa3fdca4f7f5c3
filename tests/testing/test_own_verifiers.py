"""The package's own verifiers through the check that is meant for other engines, with given uniforms."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Proposal
from jaxspec.testing import check_verifier
from jaxspec.testing.enumeration.drafting import Drafts, chain, chains
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.verifiers import traversal, tree
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import RecursiveRejection
from jaxspec.verifiers.tree_walk import match_path
from tests._fixtures.rules import block_rule, token_rule
from tests.testing.engine_rules import draw

VOCAB, UNIFORMS = 3, 7
CHAIN, SEVERAL, TREE = chain(3), chains(3, 2), (-1, -1, 0, 1, -1)
_THREE_SIBLINGS = [0, 1, 4]


class OfRule:
    """A rule of the enumerator as a function of uniforms: one a node, and the last for the token that follows.

    All drafts are filled up to one shape, so that one program is compiled: with nodes that are not submitted, and
    with tokens of probability 0.
    """

    def __init__(self, rule, parents):
        self.rule, self.parents, self.found = rule, parents, {}

    def __call__(self, target, draft, tokens, *rest):
        uniforms = rest[-1].tolist()
        key = tuple(array.tobytes() for array in (target, draft, tokens, *rest[:-1]))
        if key not in self.found:
            self.found[key] = self.leaves(target, draft, tokens, *rest)
        for leaf, text, probs in self.found[key]:
            if all((uniforms[one.uniform] < one.threshold) == one.below for one in leaf.comparisons):
                return [*text, draw(probs, uniforms[-1])]
        raise AssertionError("no leaf has these uniforms")

    def leaves(self, target, draft, tokens, *rest):
        nodes = np.arange(tokens.size)
        if tokens.ndim == 2:  # several drafts: node after node, each with its target's row
            nodes = np.concatenate([2 * i + np.arange(tokens.shape[1]) for i in range(len(tokens))])
            target = np.concatenate([target[0, :1], *target[:, 1:]])
            draft, tokens = draft.reshape(-1, draft.shape[-1]), tokens.ravel()
        elif len(rest) == 2 and rest[0].tolist() == [-1, -1, -1]:
            nodes = np.array(_THREE_SIBLINGS)
        count = len(self.parents)
        submitted, all_tokens = np.zeros(count, np.bool_), np.zeros(count, np.int32)
        submitted[nodes], all_tokens[nodes] = True, tokens
        rows, draft_rows = np.tile(np.eye(VOCAB)[0], (count + 1, 1)), np.tile(np.eye(VOCAB)[0], (count, 1))
        wide = lambda array: np.pad(array, ((0, 0), (0, VOCAB - array.shape[1])))
        rows[np.append(0, nodes + 1)], draft_rows[nodes] = wide(target), wide(draft)
        one = Drafts(self.parents, all_tokens[None], np.ones(1), submitted[None], draft_rows[None], rows[None])
        (found,) = self.rule(one)
        return [(leaf, [int(all_tokens[i]) for i in leaf.path], leaf.next_probs.tolist()) for leaf in found]


class SampleAndMatch:
    """Draws the target's own tokens, and accepts drafts as `CoupledVerifier` does: while they agree."""

    def __init__(self):
        self.found = {}

    def __call__(self, target, draft, tokens, uniforms):
        own = tuple(draw(row, uniform) for row, uniform in zip(target.tolist(), uniforms.tolist(), strict=False))
        key = (own, tokens.tobytes())
        if key not in self.found:
            proposal = Proposal(jnp.asarray(tokens[None], jnp.int32), jnp.ones((1, tokens.size), jnp.bool_))
            verdict = match_path(proposal, jnp.array([own], jnp.int32))
            self.found[key] = int(verdict.accepted[0]), int(verdict.next_token[0])
        return self.found[key]


CASES = {
    "token": (OfRule(token_rule, CHAIN), {}),
    "block": (OfRule(block_rule, CHAIN), {}),
    "coupled": (SampleAndMatch(), {}),
    "recursive rejection": (OfRule(walk_rule(RecursiveRejection().descend), SEVERAL), {"kind": "drafts"}),
    "K-SEQ": (OfRule(walk_rule(KSequence().descend), SEVERAL), {"kind": "drafts"}),
    "recursive rejection, a tree": (OfRule(walk_rule(RecursiveRejection().descend), TREE), {"kind": "tree"}),
    "recursive rejection, without replacement": (
        OfRule(walk_rule(RecursiveRejection().descend), TREE),
        {"kind": "tree", "drafts": "distinct"},
    ),
    "traversal": (OfRule(walk_rule(traversal.descend), TREE), {"kind": "tree"}),
    "traversal, without replacement": (
        OfRule(walk_rule(traversal.descend), TREE),
        {"kind": "tree", "drafts": "distinct"},
    ),
    "tree": (OfRule(walk_rule(tree.descend), TREE), {"kind": "tree"}),
}
QUICK = {"token"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES])
def test_it_is_exactly_lossless(name, monkeypatch):
    if name in QUICK:
        monkeypatch.setattr("jaxspec.testing.verifier_check._CHECKS", 1000)
    verify, options = CASES[name]
    report = check_verifier(verify, uniforms=UNIFORMS, **options)
    assert report.lossless and report.exact and not report.findings, str(report)
    assert report.total_variation < 1e-5
