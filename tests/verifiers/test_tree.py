"""`TreeVerifier`: the target's own draws, followed down the tree."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.testing.contracts.tree_verifier import TreeVerifierContract
from jaxspec.testing.contracts.verifier import DISTRIBUTION
from jaxspec.testing.enumeration.rules import walk_rule
from jaxspec.verifiers.tree import TreeVerifier, descend
from jaxspec.verifiers.tree_walk import DraftTree


class TestContract(TreeVerifierContract):
    verifier = TreeVerifier()
    rule = certain_rule = staticmethod(walk_rule(descend))
    slow_tests = (*TreeVerifierContract.slow_tests, *DISTRIBUTION, "test_each_row_may_have_a_tree_of_its_own")


@pytest.mark.slow
def test_children_that_have_all_the_mass_leave_nothing_else():
    """Rounding cannot make the walk end where the target has no mass but the children's."""
    log_probs = jnp.log(jnp.array([[[0.1, 0.2, 0.7, 0.0]] * 4], jnp.float32))
    tree = DraftTree(
        jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.bool_), None, jnp.full((1, 3), -1, jnp.int32), 1
    )
    for uniform in (0.0, 0.5, 1 - 2.0**-24):
        found = descend(tree, log_probs, jnp.full((1, 3), uniform, jnp.float32))
        assert found.accepted.tolist() == [1]
    found = descend(tree, log_probs, jnp.full((1, 3), 1.0, jnp.float32))
    assert np.isneginf(found.next_log_probs[0, 3])


def test_a_repeated_sibling_has_no_second_chance():
    log_probs = jnp.log(jnp.array([[[0.3, 0.7]] * 3], jnp.float32))
    tree = DraftTree(
        jnp.array([[0, 0]], jnp.int32), jnp.ones((1, 2), jnp.bool_), None, jnp.full((1, 2), -1, jnp.int32), 1
    )
    found = descend(tree, log_probs, jnp.array([[0.5, 0.0]], jnp.float32))
    assert found.accepted.tolist() == [0]
    assert np.isneginf(found.next_log_probs[0, 0])
