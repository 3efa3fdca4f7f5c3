"""The attention kernel, interpreted, against attention by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.nn.attention import History, attend
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_pallas import BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from tests._fixtures.interpreted import interpreted  # noqa: F401
from tests._fixtures.slots import FIELDS, drawn

CASES = {
    "one token": {"fed": 1, "tree": False},
    "chain": {"fed": 5, "tree": False},
    "tree": {"fed": 9, "tree": True},
    "tree after pending nodes": {"fed": 9, "tree": True, "pending": 4},
    "128 tokens, heads of 64": {"fed": 128, "tree": False, "width": 64},
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
@pytest.mark.usefixtures("interpreted")
def test_it_attends_to_what_xla_attends_to(case, window, dtype):
    """Rows of other lengths, layers, windows; stale slots are not looked at."""
    compared = []
    for kind in (KVCache, PallasKVCache, BySlotPallasKVCache):
        queries, fresh, cache = drawn(kind, dtype=jnp.dtype(dtype), **CASES[case])
        if kind is KVCache:
            cache = KVCache(*(jnp.nan_to_num(getattr(cache, name)) for name in FIELDS), cache.length)
        compared.append(attend(queries, fresh, History(cache, 1), scale=0.4, window=window))
    for found in compared[1:]:
        assert found.dtype == compared[0].dtype
        tolerance = 2e-6 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, compared[0])), atol=tolerance)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", ["chain", "tree"])
def test_integers_are_scaled_as_they_would_be_read(case):
    found = []
    for kind in (Int8KVCache, PallasInt8KVCache):
        queries, fresh, cache = drawn(kind, dtype=jnp.float32, **CASES[case])
        found.append(attend(queries, fresh, History(cache, 1), scale=0.4, window=None))
    np.testing.assert_allclose(found[1], found[0], atol=5e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_blocks_beyond_the_live_ones_are_not_visited():
    """The grid follows the longest row, which is not known when the program is compiled."""
    queries, fresh, cache = drawn(PallasKVCache, dtype=jnp.float32, fed=1, tree=False)
    run = jax.make_jaxpr(
        lambda length: attend(
            queries, fresh, History(PallasKVCache(cache.keys, cache.values, length), 1), scale=0.4, window=None
        )
    )
    calls = [each for each in jax.tree.leaves(run(cache.length).eqns) if each.primitive.name == "pallas_call"]
    assert len(calls) == 1 and calls[0].params["grid_mapping"].num_dynamic_grid_bounds == 1
