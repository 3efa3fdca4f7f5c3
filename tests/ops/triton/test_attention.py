"""The GPU's attention kernel, interpreted, against attention by XLA."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.nn.attention import History, attend
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_pallas import BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from jaxspec.ops.triton import attention
from tests._fixtures.interpreted import interpreted_on_gpu  # noqa: F401
from tests._fixtures.slots import FIELDS, drawn

CASES = {
    "one token": {"fed": 1, "tree": False},
    "chain": {"fed": 5, "tree": False},
    "tree": {"fed": 9, "tree": True},
    "tree after pending nodes": {"fed": 9, "tree": True, "pending": 4},
    "64 tokens, heads of 64": {"fed": 64, "tree": False, "width": 64},
    "70 tokens, in two pieces": {"fed": 70, "tree": False},
    "heads of 256": {"fed": 4, "tree": True, "width": 256, "heads": 1, "group": 1},
}
CHECKED = [
    *((case, None, "float32") for case in CASES),
    *((case, window, "float32") for case in ("chain", "tree") for window in (7, 280)),
    *((case, None, "bfloat16") for case in ("chain", "tree")),
]


@pytest.mark.parametrize(
    ("case", "window", "dtype"),
    [pytest.param(*each, marks=[] if each == ("tree", 280, "float32") else pytest.mark.slow) for each in CHECKED],
)
@pytest.mark.usefixtures("interpreted_on_gpu")
def test_it_attends_to_what_xla_attends_to(case, window, dtype):
    """Rows of other lengths, layers, windows; stale slots are not looked at."""
    compared = []
    for kind in (KVCache, PallasKVCache):
        queries, fresh, cache = drawn(kind, dtype=jnp.dtype(dtype), **CASES[case])
        if kind is KVCache:
            cache = KVCache(*(jnp.nan_to_num(getattr(cache, name)) for name in FIELDS), cache.length)
        scale = 1.6 / math.sqrt(queries.shape[-1])
        compared.append(attend(queries, fresh, History(cache, 1), scale=scale, window=window))
    assert compared[1].dtype == compared[0].dtype
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in compared), atol=tolerance)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
@pytest.mark.parametrize("case", ["chain", "tree"])
def test_int8_caches(case):
    compared = []
    for kind in (Int8KVCache, PallasInt8KVCache):
        queries, fresh, cache = drawn(kind, dtype=jnp.float32, **CASES[case])
        compared.append(attend(queries, fresh, History(cache, 1), scale=0.4, window=None))
    np.testing.assert_allclose(*compared, atol=2e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
@pytest.mark.parametrize(("kind", "width"), [(BySlotPallasKVCache, 16), (PallasKVCache, 24)])
def test_what_it_does_not_take_is_attended_to_by_xla(kind, width, monkeypatch):
    """Passes that agree to the bit, and heads whose size is no power of two."""
    queries, fresh, cache = drawn(kind, dtype=jnp.float32, fed=2, tree=False, width=width)
    monkeypatch.setattr(attention, "attend", None)
    cache = type(cache)(*(jnp.nan_to_num(getattr(cache, name)) for name in FIELDS), cache.length)
    assert jnp.all(jnp.isfinite(attend(queries, fresh, History(cache, 1), scale=0.4, window=None)))


@pytest.mark.parametrize(("programs", "blocks", "expected"), [(8, 32, 16), (8, 3, 4), (64, 32, 2), (1024, 32, 1)])
def test_slots_are_spread_so_that_the_card_is_full(programs, blocks, expected):
    assert attention._splits(programs, blocks) == expected


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [(128, "bfloat16", 64), (256, "bfloat16", 32), (128, "float32", 32), (256, "float32", 16), (16, "float32", 64)],
)
def test_long_vectors_are_read_in_smaller_blocks(width, dtype, expected):
    assert attention.block_of(width, jnp.dtype(dtype)) == expected


@pytest.mark.parametrize(
    ("size", "itemsize", "devices", "expected"),
    [(2**31, 1, 1, True), (2**31 + 1, 1, 1, False), (2**32, 1, 1, False), (2**32 + 1, 1, 1, True), (2**32, 2, 1, True)]
    + [(2**33, 1, 4, False)],
)
def test_elements_of_a_byte_that_32_bits_do_not_count_are_left_to_xla(size, itemsize, devices, expected):
    assert attention.addresses(size, itemsize, devices) is expected
