"""Attention over the cache equals a softmax over everything a token may see, however it is visited."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.nn import attention
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache

BATCH, TIME, HEADS, GROUP, WIDTH, CAPACITY = 3, 4, 2, 3, 8, 40
LENGTH = np.array([37, 0, 21])
SCALE = 0.3


def problem():
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    cache = draw(2, 2, BATCH, HEADS, CAPACITY, WIDTH)
    fresh = draw(2, BATCH, TIME, HEADS, WIDTH)
    positions = jnp.asarray(LENGTH[:, None] + np.arange(TIME), jnp.int32)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((TIME, TIME), jnp.bool_)), (BATCH, TIME, TIME))
    queries = draw(BATCH, TIME, HEADS, GROUP, WIDTH)
    history = History(KVCache(cache[0], cache[1], jnp.asarray(LENGTH, jnp.int32)), 1)
    return queries, Fresh(fresh[0], fresh[1], positions, mask), history


def by_hand(queries, fresh, history, window):
    queries, keys, values = (np.asarray(x, np.float64) for x in (queries, fresh.keys, fresh.values))
    old_keys, old_values = (np.asarray(x[1], np.float64) for x in (history.cache.keys, history.cache.values))
    out = np.zeros(queries.shape)
    for row, length in enumerate(LENGTH):
        for token in range(TIME):
            seen = np.arange(length + token + 1)
            seen = seen if window is None else seen[seen > length + token - window]
            for head in range(HEADS):
                both = [
                    np.concatenate([old[row, head, :length], new[row, : token + 1, head]])[seen]
                    for old, new in ((old_keys, keys), (old_values, values))
                ]
                scores = queries[row, token, head] @ both[0].T * SCALE
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                out[row, token, head] = weights @ both[1] / weights.sum(-1, keepdims=True)
    return out


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("block", [8, 16, 32, 256])
def test_it_is_a_softmax_over_what_is_seen(monkeypatch, block, window):
    """Blocks of 16 and 32 do not divide the cache: the last visit overlaps the one before."""
    monkeypatch.setattr(attention, "BLOCK", block)
    queries, fresh, history = problem()
    out = attend(queries, fresh, history, scale=SCALE, window=window)
    np.testing.assert_allclose(out, by_hand(queries, fresh, history, window), atol=1e-5)


def test_a_cpu_visits_fewer_slots_at_once_where_rows_are_many(monkeypatch):
    assert [attention._cpu_block(rows) for rows in (1, 16, 32, 64, 128, 1000)] == [256, 256, 128, 64, 32, 32]
    monkeypatch.setattr(attention, "_MOST_PAIRS", 48)
    monkeypatch.setattr(attention, "_LEAST_SLOTS", 4)
    visits = []

    def recorded(cache, layer, start, block):
        visits.append(block)
        return read(cache, layer, start, block)

    read = KVCache.block
    monkeypatch.setattr(KVCache, "block", recorded)
    queries, fresh, history = problem()
    out = attend(queries, fresh, history, scale=SCALE, window=None)
    assert 16 in visits  # three rows and 16 slots are 48 pairs
    np.testing.assert_allclose(out, by_hand(queries, fresh, history, None), atol=1e-5)


def test_accelerators_visit_more_slots_at_once_where_rows_are_few():
    blocks = [attention._accelerator_block(rows) for rows in (1, 5, 16, 64, 128, 10_000)]
    assert blocks == [2048, 2048, 1024, 256, 256, 256]


def test_an_accelerators_visits_give_the_same(monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cpu, default: default(*x))
    monkeypatch.setattr(attention, "_accelerator_block", lambda rows: 16)
    queries, fresh, history = problem()
    out = attend(queries, fresh, history, scale=SCALE, window=None)
    np.testing.assert_allclose(out, by_hand(queries, fresh, history, None), atol=1e-5)
