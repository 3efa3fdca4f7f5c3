"""Products of activations and weights: what they give, and what they keep in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.nn.products import project


@pytest.mark.parametrize("rows", [1, 2, 5, 48, 49])
@pytest.mark.parametrize(("out", "contract"), [((7,), 1), ((2, 5), 1), ((3, 4, 2), 1), ((7,), 3)])
def test_it_contracts_the_last_axes(rows, out, contract):
    rng = np.random.default_rng(rows)
    inner = (2, 3, 4)[:contract]
    x = jnp.asarray(rng.normal(size=(1, rows, *inner)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*out, *inner)), jnp.float32)
    expected = np.einsum(
        "bti,oi->bto",
        np.asarray(x, np.float64).reshape(1, rows, -1),
        np.asarray(kernel, np.float64).reshape(int(np.prod(out)), -1),
    ).reshape(1, rows, *out)
    np.testing.assert_allclose(project(x, kernel, contract=contract), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.optimised
def test_two_products_of_one_kernel_do_not_share_a_broadcast_of_it():
    """As in a draft model that is fed a window and then a level with as many rows."""
    kernel, x = jnp.ones((4096, 64)), jnp.ones((16, 2, 64))

    def twice(kernel, x):
        return project(project(x, kernel)[..., :64], kernel)

    program = jax.jit(twice).lower(kernel, x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 8 * kernel.nbytes
