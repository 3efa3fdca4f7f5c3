"""Products of activations and weights: their values, and the memory they take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.matmul import _project_tpu, project


@pytest.mark.parametrize("rows", [1, 2, 5, 48, 49])
@pytest.mark.parametrize("out", [(7,), (2, 5), (3, 4, 2)])
def test_it_contracts_the_last_axis(rows, out):
    rng = np.random.default_rng(rows)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, rows, 24), (*out, 24)))
    expected = np.einsum("bti,oi->bto", np.asarray(x, np.float64), np.asarray(kernel, np.float64).reshape(-1, 24))
    expected = expected.reshape(1, rows, *out)
    np.testing.assert_allclose(project(x, kernel), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(_project_tpu)(x, kernel), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.optimized
@pytest.mark.parametrize(("rows", "out", "width"), [(24, 3000, 16), (32, 1152, 32), (48, 1000, 64)])
def test_no_row_is_another_s_where_products_are_fused_with_what_follows(rows, out, width):
    """XLA's fusion of such sums and, say, a residual confuses the rows of some 33,000 outputs or more."""
    rng = np.random.default_rng(rows)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, rows, width), (out, width)))
    residual = jnp.asarray(rng.normal(size=out), jnp.float32)
    found = jax.jit(lambda x, kernel: 0.5 * project(x, kernel) + residual[None, None])(x, kernel)
    expected = 0.5 * np.einsum("bti,oi->bto", *(np.asarray(each, np.float64) for each in (x, kernel))) + np.asarray(
        residual
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.optimized
def test_two_products_of_one_kernel_do_not_share_a_broadcast_of_it():
    """They occur in a draft model that is fed a window and then a level with as many rows."""
    kernel, x = jnp.ones((4096, 64)), jnp.ones((16, 2, 64))

    def twice(kernel, x):
        return project(project(x, kernel)[..., :64], kernel)

    program = jax.jit(twice).lower(kernel, x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 8 * kernel.nbytes


@pytest.mark.parametrize("rows", [1, 2, 49])
def test_bfloat16_on_a_cpu_sums_in_float32(rows):
    """Values and gradients are those of the rounded operands, rounded once."""
    rng = np.random.default_rng(rows)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.bfloat16)  # noqa: E731
    x, kernel, slope = draw(1, rows, 600), draw(4, 2, 600), draw(1, rows, 4, 2)
    exact = lambda x: np.asarray(x, np.float64)  # noqa: E731
    product, pull = jax.vjp(project, x, kernel)
    assert product.dtype == jnp.bfloat16
    close = lambda got, wanted: np.testing.assert_allclose(exact(got), wanted, rtol=2**-8, atol=1e-3)  # noqa: E731
    close(product, np.einsum("bti,ogi->btog", exact(x), exact(kernel)))
    to_x, to_kernel = pull(slope)
    close(to_x, np.einsum("btog,ogi->bti", exact(slope), exact(kernel)))
    close(to_kernel, np.einsum("btog,bti->ogi", exact(slope), exact(x)))
