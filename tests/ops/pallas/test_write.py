"""The kernel that writes fresh tokens into a cache, interpreted."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.pallas.write import write


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        ("float32", 5),
        *(pytest.param("float32", count, marks=pytest.mark.slow) for count in (1, 33, 70)),
        *(pytest.param(dtype, count, marks=pytest.mark.slow) for dtype in ("bfloat16", "int8") for count in (1, 5, 70)),
    ],
)
def test_it_writes_the_fresh_slots_and_no_others(dtype, count):
    """Of rows that begin in a tile, at its end, and end where the cache ends, or would beyond it."""
    rng = np.random.default_rng(count)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 20).astype(dtype)  # noqa: E731
    buffer, fresh = draw(6, 5, 2, 512, 8), draw(6, 5, 2, count, 8)
    start = np.asarray([0, 31, 100, 512 - count, 511], np.int32)
    expected = np.array(buffer)
    for row, at in enumerate(start):
        expected[:, row, :, at : at + count] = fresh[:, row, :, : 512 - at]
    found = write(buffer, fresh, jnp.asarray(start), interpret=True)
    np.testing.assert_array_equal(np.asarray(found), expected)
