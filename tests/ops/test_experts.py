"""Products of rows with the weights of their own experts, in each form, against one product a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.experts import project_by_expert, ragged
from jaxspec.ops.formats import FORMATS
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.packed import JoinedWeight, LayerWeight

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
    for form in (project_by_expert, ragged):
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


def _formats():
    try:
        register()
    except NoCompilerError as error:
        pytest.skip(str(error))
    native, stored = FORMATS["native"], FORMATS["stored"]
    return [(native, jnp.float32), (native, jnp.bfloat16), (stored, jnp.int8), (stored, jnp.int4)]


@pytest.mark.slow
@pytest.mark.parametrize(("out", "width"), [((2, 5), 16), ((2, 16), 64), ((7,), 40), ((33,), 256)])
def test_native_products_equal_those_of_one_expert(out, width):
    """To the bit, also where an expert's outputs begin within a tile, in a loop over layers, and joined."""
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=(2, COUNT, *out, width)), jnp.float32)
    for kind, dtype in _formats():
        layers = [kind.pack(one, dtype) for one in weights]
        for groups in GROUPS.values():
            experts = np.repeat(np.arange(COUNT, dtype=np.int32), groups)
            x, arguments = jnp.asarray(rng.normal(size=(len(experts), width)), jnp.float32), jnp.asarray(experts)
            expected = np.empty((len(experts), *out), np.float32)
            for expert in set(experts.tolist()):
                alone = kind.pack(weights[1, expert], dtype)
                expected[experts == expert] = alone.product(x[None, experts == expert])[0]
            np.testing.assert_array_equal(project_by_expert(x, layers[1], arguments), expected)
            of_layer = LayerWeight(layers, jnp.int32(1))
            np.testing.assert_array_equal(project_by_expert(x, of_layer, arguments), expected)
            joined = project_by_expert(x, JoinedWeight((layers[1], layers[1]), axis=1), arguments)
            np.testing.assert_array_equal(joined, np.concatenate([expected, expected], axis=1))


def test_native_products_refuse_an_expert_that_is_not_there():
    for kind, dtype in _formats()[1:3]:
        packed = kind.pack(jnp.asarray(WEIGHTS), dtype)
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="an expert is out of range"):
            jax.block_until_ready(project_by_expert(jnp.ones((1, WIDTH)), packed, jnp.asarray([COUNT], jnp.int32)))
