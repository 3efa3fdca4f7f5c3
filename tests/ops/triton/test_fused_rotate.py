"""The GPU's rotation of queries and keys, interpreted, against XLA's."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.nn.cache_pallas import BySlotPallasKVCache, PallasKVCache
from jaxspec.ops.rope import Rope, rope_table, rotate
from jaxspec.ops.triton import fused as triton
from tests._fixtures.interpreted import interpreted_on_gpu  # noqa: F401


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


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
@pytest.mark.parametrize("kind", [BySlotPallasKVCache, PallasKVCache])
def test_what_it_does_not_take_is_rotated_by_xla(kind, monkeypatch):
    """Passes that agree to the bit, and those without a cache, which may be differentiated."""
    monkeypatch.setattr(triton, "rotate", None)
    sizes = {"layers": 1, "batch": 1, "heads": 2, "head_dim": 16, "dtype": jnp.float32}
    cache = kind.empty(**sizes, capacity=256 if kind is BySlotPallasKVCache else 0)
    table = rope_table(jnp.zeros((1, 1), jnp.int32), 16, Rope(1e4))
    queries, keys, _ = cache.rotate(jnp.ones((1, 1, 2, 3, 16)), jnp.ones((1, 1, 2, 2, 16)), table)
    assert (queries == 1).all() and (keys == 1).all()
