"""Defines the contract of tree verifiers: in addition, they keep the distribution exactly for any tree."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Proposal
from jaxspec.testing.contracts.verifier import VerifierContract
from jaxspec.testing.enumeration.drafting import (
    chain,
    chains,
    depth,
    drawn,
    drawn_after_top,
    drawn_without_replacement,
    guessed,
    path_to,
)
from jaxspec.testing.enumeration.rounds import deviation, emitted_probs, enumerate_round, mean_accepted
from jaxspec.testing.enumeration.several_rounds import key_names, several_rounds
from jaxspec.testing.enumeration.tables import PAIR_NAMES, QUICK_PAIRS, pair, total_variation

EXACT = 1e-9
SHAPES = {
    "chain": chain(2),
    "three siblings": (-1, -1, -1),
    "two chains of two": chains(2, 2),
    "three chains of two": chains(3, 2),
    "binary": (-1, -1, 0, 0, 1, 1),
    "lopsided, three deep": (-1, -1, 0, 2, 2),
}
# Trees of six nodes have many drafts, but fewer if distributions have zeros.
QUICK_SHAPES = ("three siblings", "two chains of two")
CASES = [
    pytest.param(shape, name, id=f"{shape}-{name}")
    for shape, parents in SHAPES.items()
    for name in (PAIR_NAMES if len(parents) < 6 else ["zeros in both"])
]
SEVERAL = {
    "two siblings": ((-1, -1), 3),
    "a child": ((-1, -1, 0), 2),
    "one draft": ((-1,), 3),
    "two drafts": (chain(2), 2),
    "chains": (chains(2, 2), 2),
}
DRAWN = {"with replacement": drawn, "without": drawn_without_replacement, "after the top": drawn_after_top}


class TreeVerifierContract(VerifierContract):
    """Checks a verifier of trees by enumeration; a test class sets `verifier` and its arithmetic as leaves, `rule`.

    Example:
      >>> class TestMultiDraft(jaxspec.testing.TreeVerifierContract):
      ...     verifier = jaxspec.verifiers.MultiDraftVerifier()
    """

    rule: Any
    certain_rule: Any  # for drafts that are certain
    ways: tuple[str, ...] = ("with replacement", "without")
    long_cases = (
        *(
            f"test_one_round_keeps_the_distribution[{case.id}]"
            for case in CASES
            if case.values[0] not in QUICK_SHAPES or case.values[1] not in QUICK_PAIRS
        ),
        *(
            f"test_several_rounds_keep_the_distribution_with_the_real_keys[{name}]"
            for name in ("one draft", "two drafts", "chains")
        ),
    )
    # The enumerations below cover chains; these tests run them on the device, many rows at once.
    slow_tests = (
        "test_accepts_a_prefix_of_what_was_submitted",
        "test_never_emits_what_the_target_excludes",
        "test_rows_at_temperature_zero_emit_the_argmax",
        "test_a_draft_distribution_of_nan_changes_no_distribution",
        "test_a_target_distribution_of_nan_after_an_excluded_draft_accepts_nothing",
        "test_a_row_does_not_depend_on_its_neighbors",
    )

    @pytest.mark.parametrize(("shape", "name"), CASES)
    def test_one_round_keeps_the_distribution(self, shape, name):
        parents = SHAPES[shape]
        length = depth(parents) + 1
        target, draft = pair(name, 3, length, seed=3)
        for way in self.ways:
            round_ = enumerate_round(target, DRAWN[way](parents, draft), type(self).rule)
            assert deviation(round_, target, length) < EXACT, way

    def test_one_round_keeps_the_distribution_over_four_tokens(self):
        target, draft = pair("full support", 4, 3, seed=1)
        for way, parents in itertools.product(self.ways, [(-1, -1, -1), (-1, -1, 0)]):
            round_ = enumerate_round(target, DRAWN[way](parents, draft), type(self).rule)
            assert deviation(round_, target, 3) < EXACT, (way, parents)

    def test_drafts_that_are_withheld(self):
        """Submits a node depending on the tokens before it."""
        target, draft = pair("full support", 3, 3, seed=5)

        def choose(place):
            return sum(place.prefix) % 2 == 0

        for way, parents in itertools.product(self.ways, [chains(2, 2), (-1, -1, 0, 0)]):
            round_ = enumerate_round(target, DRAWN[way](parents, draft, submitted=choose), type(self).rule)
            assert deviation(round_, target, 3) < EXACT, (way, parents)

    @pytest.mark.parametrize(
        ("parents", "length"),
        [pytest.param(parents, length, id=name) for name, (parents, length) in SEVERAL.items()],
    )
    def test_several_rounds_keep_the_distribution_with_the_real_keys(self, parents, length):
        verifier = self.verifier
        target, draft = pair("full support", 3, length + depth(parents), seed=2)
        names = functools.cache(
            lambda n: key_names(verifier, jax.random.key(3), n, [(node, 0) for node in range(len(parents))])
        )
        for way in self.ways:
            found = several_rounds(target, DRAWN[way](parents, draft), type(self).rule, length=length, names=names)
            assert total_variation(found, target.text_probs(length)) < EXACT, way

    def test_each_row_may_have_a_tree_of_its_own(self):
        """Verifies a batch of different trees like each tree alone."""
        random = np.random.default_rng(0)
        trees = np.array([(-1, 0, 1, -1), (-1, -1, -1, -1), (-1, -1, 0, 2), (-1, 0, 0, 1)] * 3)
        rows, count, vocab = *trees.shape, 5
        probs = random.dirichlet(np.ones(vocab), size=(rows, 2 * count + 1))
        log_probs = jnp.asarray(np.log(probs), jnp.float32)
        target, draft = log_probs[:, : count + 1], log_probs[:, count + 1 :]
        tokens = jnp.asarray(random.integers(vocab, size=(rows, count)), jnp.int32)
        valid = jnp.ones((rows, count), jnp.bool_)
        proposal = Proposal(tokens, valid, draft, jnp.asarray(trees, jnp.int32), 3)
        rng = self.verifier.rng(jax.random.split(jax.random.key(1), rows), jnp.full(rows, 7, jnp.int32))
        together = _verify(self.verifier, rng, proposal, target)
        assert len(set(np.asarray(together.accepted).tolist())) > 1
        for row in range(rows):
            own = depth(tuple(trees[row].tolist()))
            alone = jax.tree.map(lambda x, row=row: x[row : row + 1], (rng, proposal, target))
            one = alone[1]
            alone = (alone[0], Proposal(one.tokens, one.valid, one.log_probs, one.parents, own), alone[2])
            verdict = _verify(self.verifier, *alone)
            accepted = int(verdict.accepted[0])
            assert accepted == int(together.accepted[row])
            assert int(verdict.next_token[0]) == int(together.next_token[row])
            np.testing.assert_array_equal(verdict.path[0, :accepted], together.path[row, :accepted])
            path = together.path[row, :accepted].tolist()
            kept = np.asarray(tokens[row])[path].tolist()
            # Equal drafts under different parents may continue either path.
            for place, node in enumerate(path):
                above = path_to(tuple(trees[row].tolist()), node)
                assert np.asarray(tokens[row])[list(above)].tolist() == kept[: place + 1]

    def test_certain_drafts_take_the_targets_mass_of_the_tree(self):
        """Finds every verifier as good with certain drafts as sampling from the target."""
        target, _ = pair("full support", 3, 4, seed=6)
        parents = (-1, -1, 0, 0, 1)

        def guess(place):
            return (sum(place.prefix) + len(place.siblings)) % 3

        round_ = enumerate_round(target, guessed(parents, guess, 3), self.certain_rule)
        texts = {tuple(round_.drafts.tokens[0, list(path)].tolist()) for path in ([0], [1], [0, 2], [0, 3], [1, 4])}
        mass = sum(np.prod([target.probs(text[:i])[token] for i, token in enumerate(text)]) for text in texts)
        assert mean_accepted(round_) == pytest.approx(mass, abs=EXACT)
        assert deviation(round_, target, 3) < EXACT
        assert sum(emitted_probs(round_).values()) == pytest.approx(1)


_verify = jax.jit(lambda verifier, *args: verifier.verify(*args))
