"""The GPU's rotation of queries and keys, interpreted, beside XLA's."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.rope import Rope, rope_table, rotate
from jaxspec.ops.triton import rotate as triton


@pytest.mark.parametrize(
    ("group", "dtype"),
    [
        (3, "float32"),
        pytest.param(1, "float32", marks=pytest.mark.slow),
        pytest.param(4, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_it_rotates_what_xla_rotates(group, dtype):
    rng = np.random.default_rng(0)
    queries, both = (jnp.asarray(rng.normal(size=(2, 5, 2, count, 16)), dtype) for count in (group, 2))
    table = rope_table(jnp.asarray(rng.integers(0, 500, (2, 5)), jnp.int32), 16, Rope(1e4))
    found = triton.rotate(queries, both, table, interpret=True)
    expected = rotate(queries, table), rotate(both[..., 0, :], table), both[..., 1, :]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), atol=1e-6)
