"""The GPU's norm of one row, interpreted, against its definition in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.triton import fused


@pytest.mark.parametrize("count", [1, 2], ids=["a row", "a sum"])
def test_it_is_the_norm_of_the_sum(count):
    rng = np.random.default_rng(0)
    scale, *terms = (rng.normal(size=48).astype(np.float32) for _ in range(1 + count))
    total, found = fused.rms_norm(
        jnp.asarray(scale), *(jnp.asarray(x)[None, None] for x in terms), eps=1e-2, interpret=True
    )
    wide = np.sum(np.asarray(terms, np.float64), axis=0)
    np.testing.assert_allclose(total[0, 0], wide, atol=1e-6)
    np.testing.assert_allclose(found[0, 0], wide / np.sqrt(np.mean(wide**2) + 1e-2) * scale, atol=1e-5)


def test_the_norm_is_that_of_what_is_stored():
    """Of the sum in bfloat16, which the next layers read."""
    # Too little to be stored; its norm would be rounded up.
    scale, little = jnp.full(16, 1.003), jnp.zeros((1, 1, 16), jnp.bfloat16).at[0, 0, 0].set(1.875 * 2.0**-9)
    total, found = fused.rms_norm(scale, jnp.ones((1, 1, 16), jnp.bfloat16), little, eps=0.0, interpret=True)
    assert (total == 1).all() and (found == 1).all()


@pytest.mark.parametrize(("shape", "expected"), [((1, 1, 16), True), ((1, 2, 16), False), ((1, 1, 32768), False)])
def test_what_it_takes(shape, expected):
    assert fused.fits(jnp.zeros(shape)) is expected
