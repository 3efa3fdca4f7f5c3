"""Averages of rows: in one order on a CPU, and of any width, dtype and placement."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxspec.core.sums import row_mean


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 20, 576, 897, 4096])
def test_a_mean_is_of_its_row(width):
    """Alone and among 2 to 300 rows, and as the average is defined."""
    x = jnp.asarray(np.random.default_rng(width).normal(size=(1, 300, width)), jnp.float32)
    mean = jax.jit(lambda x: row_mean(x * x))
    alone = np.concatenate([mean(x[:, row : row + 1]) for row in range(64)], axis=1)
    np.testing.assert_allclose(alone, np.mean(np.square(x, dtype=np.float64), axis=-1)[:, :64], rtol=1e-5)
    for count in (2, 3, 5, 7, 8, 9, 16, 33, 64, 300):
        np.testing.assert_array_equal(np.asarray(mean(x[:, :count]))[:, :64], alone[:, :count], err_msg=f"{count}")


def test_halves_are_summed_in_float32():
    assert row_mean(jnp.full((1, 4096), 30.0, jnp.float16)).tolist() == [30.0]
    assert row_mean(jnp.ones((2, 300), jnp.bfloat16)).dtype == jnp.bfloat16


def test_the_mean_of_nothing_is_no_number():
    assert jnp.isnan(row_mean(jnp.zeros((2, 0)))).all()


def test_an_axis_that_is_split_stays_split():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Explicit,))
    x = jnp.arange(4.0 * 96).reshape(4, 96)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "model")))
        found = jax.jit(row_mean)(placed)
    np.testing.assert_allclose(found, x.mean(axis=-1), rtol=1e-6)
