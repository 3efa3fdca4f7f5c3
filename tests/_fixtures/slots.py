"""Draws queries, fed tokens and caches for kernels that attend to them."""

import jax.numpy as jnp
import numpy as np

from jaxspec.core.tree import verification_mask
from jaxspec.nn.attention import Fresh
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.cache_pallas import BySlotPallasKVCache, PallasKVCache
from tests._fixtures.same_bits import random_tree

CAPACITY = 768
FIELDS = ("keys", "values")
# Rows that end in a block, at its end and before it begins; an empty one.
LENGTHS = (300, 256, 255, 0)


def drawn(kind, *, dtype, fed, tree, pending=0, heads=2, group=3, width=16, seed=0):
    """Returns queries, fed tokens and caches of three layers, with stale slots after each row (NaN in float caches)."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    batch, length = len(LENGTHS), jnp.asarray(LENGTHS, jnp.int32)
    sizes = {"layers": 3, "batch": batch, "heads": heads, "capacity": CAPACITY, "head_dim": width, "dtype": dtype}
    held = KVEntries(draw(3, batch, heads, CAPACITY, width), draw(3, batch, heads, CAPACITY, width))
    stale = jnp.arange(CAPACITY)[None, :] >= length[:, None]
    cache = kind.empty(**sizes).append(held).truncate(length)
    if kind is KVCache or issubclass(kind, PallasKVCache | BySlotPallasKVCache):
        spoiled = {name: jnp.where(stale[None, :, None, :, None], jnp.nan, getattr(cache, name)) for name in FIELDS}
        cache = type(cache)(**spoiled, length=length)
    positions, mask = length[:, None] + jnp.arange(fed, dtype=jnp.int32)[None], None
    if tree:
        parents = np.stack([random_tree(np.random.default_rng(row), fed - 1, 2)[0] for row in range(batch)])
        mask = verification_mask(jnp.asarray(parents, jnp.int32), depth=fed)
        positions = length[:, None] + jnp.sum(mask, axis=2, dtype=jnp.int32) - 1
        mask = mask[:, pending:]
    fresh = [cache.fake_quant(draw(batch, fed, heads, width)) for _ in range(2)]
    return draw(batch, fed - pending, heads, group, width), Fresh(*fresh, positions, mask), cache
