"""Products of experts in groups of blocks, as on a TPU: each row meets its own expert, and no group is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.experts import by_groups

COUNT, OUT, WIDTH = 20, (2, 3), 8
WEIGHTS = np.random.default_rng(0).normal(size=(COUNT, *OUT, WIDTH)).astype(np.float32)
# The experts of the rows: fewer blocks than a group, several groups, groups without rows, and blocks of many rows.
ROWS = {
    "one group": [3, 3, 7, 19],
    "three groups": np.arange(COUNT),
    "later groups have none": [5] * 12 + [6] * 13,
    "more than one block": [0] * 17 + [1] * 16 + [2] * 33,
    "many rows": np.repeat(np.arange(COUNT), 9),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_meet_their_own_expert(name):
    experts = np.asarray(ROWS[name], np.int32)
    x = np.random.default_rng(1).normal(size=(len(experts), WIDTH)).astype(np.float32)
    found = jax.jit(by_groups)(jnp.asarray(x), jnp.asarray(WEIGHTS), jnp.asarray(experts))
    np.testing.assert_allclose(found, np.einsum("mi,m...i->m...", x, WEIGHTS[experts]), atol=1e-5)


def test_rows_of_absent_experts_disturb_no_other():
    """A device that holds some of the experts gets the others' rows too, after its own."""
    experts = np.asarray([0, 2, 2, COUNT, COUNT], np.int32)
    x = np.ones((len(experts), WIDTH), np.float32)
    found = by_groups(jnp.asarray(x), jnp.asarray(WEIGHTS), jnp.asarray(experts))
    np.testing.assert_allclose(found[:3], WEIGHTS[experts[:3]].sum(axis=-1), atol=1e-5)


def test_a_gradient_flows_through_groups():
    experts = np.asarray(ROWS["later groups have none"], np.int32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(len(experts), WIDTH)), jnp.float32)
    found = jax.grad(lambda weights: jnp.sum(by_groups(x, weights, jnp.asarray(experts))))(jnp.asarray(WEIGHTS))
    expected = np.zeros_like(WEIGHTS)
    np.add.at(expected, experts, np.broadcast_to(np.asarray(x)[:, None, None], (len(experts), *OUT, WIDTH)))
    np.testing.assert_allclose(found, expected, atol=1e-4)
