"""The kernels of stored weights with unusual or invalid shapes, values and indices: by seeded draws, and raw calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.matmul import project
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.stored import BLOCKS, StoredWeight
from tests._fixtures import blocks, native_calls

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

_product = jax.jit(project)
_rows = jax.jit(lambda weight, index: weight[index])


def drawn(rng):
    """Returns a weight of any format and shape, its values, and activations of any kind in each group."""
    name = str(rng.choice(list(BLOCKS)))
    out, width, rows = int(rng.integers(1, 50)), BLOCKS[name][0] * int(rng.integers(1, 6)), int(rng.integers(1, 21))
    packed = blocks.random_blocks(name, out, width, int(rng.integers(2**31)))
    x = rng.normal(size=(rows, width // 32, 32)) * 10.0 ** rng.uniform(-4, 4, (rows, width // 32, 1))
    kind = rng.integers(0, 5, x.shape[:2])[..., None]
    one_size = 2e4 * x / np.abs(x).max(axis=-1, keepdims=True)
    x = np.where(kind == 0, 0, np.where(kind < 3, one_size, x))
    weight = StoredWeight.of(packed, name, (out, width), jnp.float32)
    return weight, blocks.values(name, packed), x.reshape(rows, width).astype(np.float32)


def check(seed):
    """Compares values, products and single rows; the sums of a row have at most two roundings a group and half."""
    weight, dense, x = drawn(np.random.default_rng(seed))
    found = np.asarray(_product(x[None], weight)[0])
    rounded = blocks.rounded(x)
    bound = 2.0**-24 * (8 + x.shape[1] / 4) * (np.abs(rounded) @ (np.abs(dense) + np.abs(dense).max()).T)
    assert (np.abs(found - rounded @ dense.T.astype(np.float64)) <= bound).all(), (seed, weight.block_format, x.shape)
    np.testing.assert_array_equal(weight[:], dense)
    one = seed % len(x)
    np.testing.assert_array_equal(_product(x[None, one : one + 1], weight)[0, 0], found[one])


@pytest.mark.parametrize("seed", range(12))
def test_any_shape_and_numbers(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 900, 100))
def test_many_shapes_and_numbers(first):
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.parametrize("most", [1e-37, 1e-40])
def test_activations_too_small_for_a_scale_are_nothing(most):
    """In the thread that calls as in those that share the rounding of many rows."""
    weight = native_calls.stored_weight("Q8_0", 9, 20)
    x = np.full((32, 288), most, np.float32)
    x[:, :32] = 1
    found = np.asarray(_product(x[None], weight)[0])
    np.testing.assert_array_equal(found, np.broadcast_to(found[0], found.shape))
    np.testing.assert_array_equal(found[:1], _product(x[None, :1], weight)[0])
    x[:, 32:] = 0
    np.testing.assert_array_equal(found, _product(x[None], weight)[0])


@pytest.mark.parametrize("name", ["Q2_K", "Q4_1", "Q6_K", "Q8_0"])
def test_the_largest_integers_do_not_overflow(name):
    """All codes and activations as large as they can be, of both signs."""
    inputs, size = BLOCKS[name]
    for byte in (0, 255, 128, 127):
        packed = np.full((16, size), byte, np.uint8)
        for at in blocks.HALVES[name]:
            packed[:, at : at + 2] = np.asarray([0.5], np.float16).view(np.uint8)
        weight, dense = StoredWeight.of(packed, name, (16, inputs), jnp.float32), blocks.values(name, packed)
        for sign in (1, -1):
            x = np.full((1, inputs), sign * 32512.0, np.float32)
            expected = blocks.rounded(x) @ dense.T.astype(np.float64)
            np.testing.assert_allclose(_product(x[None], weight)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32, jnp.int8])
def test_rows_out_of_range_are_those_of_an_array(dtype):
    """A negative index counts from the end, and one beyond either end is the last row there."""
    weight = native_calls.stored_weight("Q4_K", 2, 37)
    index = jnp.asarray([[0, 36, 37, 100], [-1, -37, -38, -100]]).astype(dtype)
    expected = _rows(NativeWeight(weight[:]), index)
    np.testing.assert_array_equal(_rows(weight, index), expected)
    np.testing.assert_array_equal(_rows(weight, index[:, :0]), expected[:, :0])
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_mapped_products_are_those_of_the_rows(name):
    weight = native_calls.stored_weight(name, 2, 21)
    x = np.random.default_rng(0).normal(size=(3, 1, 5, 512)).astype(np.float32)
    whole = _product(x.reshape(1, 15, 512), weight).reshape(3, 1, 5, 21)
    np.testing.assert_array_equal(jax.jit(jax.vmap(project, (0, None)))(x, weight), whole)
    tokens = jnp.asarray([[3, 20], [0, 3], [7, 7]])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda row: weight[row]))(tokens), weight[tokens])


@pytest.mark.parametrize("case", [(0, 2, 5), (3, 0, 5), (3, 2, 0), (0, 2, 0)])
def test_products_of_nothing(case):
    found, _, table = native_calls.odd_stored("Q5_1", case)
    np.testing.assert_array_equal(found, np.zeros((case[0], case[2])))
    assert table.shape == (case[2], case[1] * 32)


@pytest.mark.parametrize("case", native_calls.WRONG_STORED, ids=str)
def test_a_product_of_wrong_shapes_is_an_error(case):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.wrong_stored(case)


@pytest.mark.parametrize("case", native_calls.WRONG_ROWS, ids=str)
def test_wrong_rows_are_an_error(case):
    """Otherwise the raw call would read out of bounds."""
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.wrong_rows(case)


def test_what_is_right_is_none():
    """The valid calls that the invalid ones above are made from."""
    assert native_calls.wrong_stored({}).shape == (3, 5) and native_calls.wrong_rows({}).shape == (5, 64)
