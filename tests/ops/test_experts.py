"""Products of rows with the weights of their own experts, in each form, against one product a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops import experts as ops
from jaxspec.ops.experts import project_by_expert
from jaxspec.ops.formats import FORMATS

COUNT, OUT, WIDTH = 6, (2, 5), 16
WEIGHTS = np.random.default_rng(0).normal(size=(COUNT, *OUT, WIDTH)).astype(np.float32)
# The rows of each expert: none, one, whole blocks and parts of them, all of one expert, and more than few.
GROUPS = {
    "one row": (0, 0, 0, 1, 0, 0),
    "some have none": (3, 0, 4, 0, 5, 1),
    "all have some": (1, 1, 1, 1, 1, 1),
    "all of the last": (0, 0, 0, 0, 0, 48),
    "many": (70, 0, 1, 64, 3, 62),
}


def _rows(groups):
    experts = np.repeat(np.arange(COUNT), groups)
    return np.random.default_rng(1).normal(size=(len(experts), WIDTH)).astype(np.float32), experts


def _expected(x, experts, weights=WEIGHTS):
    return np.einsum("mi,m...i->m...", x.astype(np.float64), weights.astype(np.float64)[experts])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "some have none" else pytest.mark.slow) for name in GROUPS]
)
def test_rows_meet_their_own_expert(name):
    """In blocks, and by ragged products: none is dropped."""
    x, experts = _rows(GROUPS[name])
    arguments = jnp.asarray(x), jnp.asarray(WEIGHTS), jnp.asarray(experts)
    for form in (project_by_expert, ops._ragged):
        found = jax.jit(form)(*arguments)
        assert found.shape == (len(experts), *OUT)
        np.testing.assert_allclose(found, _expected(x, experts), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "grouped"])
def test_packed_weights(name):
    packed = FORMATS[name].pack(jnp.asarray(WEIGHTS))
    x, experts = _rows(GROUPS["some have none"])
    found = jax.jit(project_by_expert)(jnp.asarray(x), packed, jnp.asarray(experts))
    np.testing.assert_allclose(found, _expected(x, experts, np.asarray(packed[:])), atol=1e-5)


@pytest.mark.slow
def test_a_rows_bits_do_not_depend_on_its_block():
    """The rows of an expert are the same in any order, next to any others, in blocks of few and of many."""
    for groups in (GROUPS["some have none"], GROUPS["many"]):
        x, experts = _rows(groups)
        rng, product = np.random.default_rng(2), jax.jit(project_by_expert)
        found = np.asarray(product(jnp.asarray(x), jnp.asarray(WEIGHTS), jnp.asarray(experts)))
        for _ in range(5):
            order = rng.permutation(len(experts))
            others = np.sort(rng.integers(0, COUNT, len(experts)))
            same = np.sort(rng.choice(len(experts), len(experts) // 2, replace=False))
            mixed = np.where(np.isin(np.arange(len(experts)), same), experts, others)
            order = order[np.argsort(mixed[order], kind="stable")]
            moved = np.asarray(product(jnp.asarray(x[order]), jnp.asarray(WEIGHTS), jnp.asarray(mixed[order])))
            kept = np.isin(order, same)
            np.testing.assert_array_equal(moved[kept], found[order[kept]])


@pytest.mark.slow
def test_a_gradient_flows_through_both():
    x, experts = _rows(GROUPS["some have none"])
    total = lambda weights: jnp.sum(project_by_expert(jnp.asarray(x), weights, jnp.asarray(experts)) ** 2)  # noqa: E731
    found = jax.grad(total)(jnp.asarray(WEIGHTS))
    expected = np.zeros_like(WEIGHTS)
    np.add.at(expected, experts, 2 * np.einsum("mab,mi->mabi", _expected(x, experts), x).astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
