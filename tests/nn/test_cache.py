"""The cache: each row writes at its own length, rolls back by reducing it, and never runs out of slots."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn import cache
from jaxspec.nn.cache import BLOCK, KVCache, KVEntries
from jaxspec.testing.history_models import history_model, nearby


def empty(batch, capacity=8):
    return KVCache.empty(layers=2, batch=batch, heads=1, capacity=capacity, head_dim=2, dtype=jnp.float32)


def entries(batch, time, value):
    x = jnp.full((2, batch, 1, time, 2), value, jnp.float32)
    return KVEntries(x, -x)


def test_capacity_is_whole_blocks():
    assert [empty(1, n).capacity for n in (1, BLOCK, BLOCK + 1)] == [BLOCK, BLOCK, 2 * BLOCK]


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_write_at_their_own_lengths(batch):
    start = np.array([5, 0, BLOCK - 2])[:batch]
    cache = empty(batch).append(entries(batch, 8, 1.0)).truncate(jnp.asarray(start, jnp.int32))
    written = cache.append(entries(batch, 2, 7.0))
    assert written.length.tolist() == (start + 2).tolist()
    for row, at in enumerate(start):
        expected = np.array(cache.keys[:, row])
        expected[:, :, at : at + 2] = 7.0
        np.testing.assert_array_equal(written.keys[:, row], expected)
        np.testing.assert_array_equal(written.values[:, row, :, at : at + 2], -7.0)


def test_truncation_moves_the_length_and_nothing_else():
    cache = empty(2).append(entries(2, 4, 1.0))
    rolled = cache.truncate(jnp.array([1, 4], jnp.int32))
    assert rolled.keys is cache.keys and rolled.values is cache.values
    assert rolled.length.tolist() == [1, 4]


@pytest.mark.parametrize(("first", "last"), [(2, 3), (2, 2 * BLOCK)], ids=["some", "all"])
def test_the_ends_of_each_row(first, last):
    """The middle of a row is left out, and a short row is whole; later tokens are appended at their own positions."""
    length = [8, 3, 0, 5, BLOCK]
    numbers = jnp.broadcast_to(jnp.arange(BLOCK, dtype=jnp.float32)[:, None], (2, 5, 1, BLOCK, 2))
    cache = empty(5).append(KVEntries(numbers, -numbers)).truncate(jnp.asarray(length, jnp.int32))
    ends = cache.sinks_and_window(first, last, room=2)
    longer = ends.append(entries(5, 2, 7.0))
    for row, count in enumerate(length):
        kept = [at for at in range(count) if at < first or at >= count - last]
        assert int(ends.length[row]) == len(kept)
        np.testing.assert_array_equal(longer.keys[1, row, 0, : len(kept) + 2, 0], [*kept, 7, 7])
        np.testing.assert_array_equal(longer.values[0, row, 0, : len(kept), 1], np.negative(kept))
        assert longer.positions[row, : len(kept) + 2].tolist() == [*kept, count, count + 1]


def test_padded_entries_begin_with_the_same_ones():
    padded = entries(1, 2, 3.0).pad(5)
    assert padded.keys.shape[3] == 5
    np.testing.assert_array_equal(padded.keys[:, :, :, :2], 3.0)


@pytest.mark.slow
def test_a_generation_never_outgrows_its_caches():
    """At every round of a run to the last token, both caches have room for what will be fed."""
    target, k = history_model(0, scale=2.0), 5
    drafter = jaxspec.ModelDrafter(nearby(target, 0.3), k=k)
    prompt = jnp.zeros((3, 16), jnp.int32)
    lengths = jnp.array([16, 1, 15], jnp.int32)
    state = jax.jit(lambda: jaxspec.init(target, drafter, prompt, prompt_length=lengths, max_new_tokens=16))()
    step = jax.jit(lambda state: jaxspec.step(target, drafter, jaxspec.TokenVerifier(), state))
    slots = state.cache.tokens.shape[1]
    assert state.drafter_state.draft_state.cache.tokens.shape[1] == state.tokens.shape[1] == slots
    longest = 0
    while not state.done.all():
        state, _ = step(state)
        assert state.cache.length.tolist() == (state.length - 1).tolist()
        longest = max(longest, int(state.length.max()))
        assert longest - 1 + k + 1 <= slots
    assert longest == 32


@pytest.mark.parametrize(("count", "rows"), [(1, 5), (2, 5), (5, 5), (8, 5), (9, 5), (2, 8), (3, 19)])
def test_every_platforms_write_is_the_same(count, rows):
    """Starts within a tile, across two, and at the cache's end; each is written by the row it is for."""
    capacity = 32
    start = jnp.asarray(([0, 3, 7, 16, capacity - count] * 4)[:rows], jnp.int32)
    rng = np.random.default_rng(count)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    buffer, fresh = draw(2, rows, 3, capacity, 4), draw(2, rows, 3, count, 4)
    expected = np.array(buffer)
    for row, at in enumerate(start):
        expected[:, row, :, at : at + count] = fresh[:, row]
    for write in (cache._write_tiles, cache._write_rows, cache._write_row_by_row):
        np.testing.assert_array_equal(jax.jit(write)(buffer, fresh, start), expected)


def _append(rows):
    """Returns the lowered program that appends to a cache of `rows` rows in place."""
    shapes = jax.eval_shape(lambda: (empty(rows), entries(rows, 3, 1.0)))
    return jax.jit(lambda cache, new: cache.append(new), donate_argnums=0).lower(*shapes)


def test_the_text_of_a_write_does_not_grow_with_the_rows():
    few, many = (_append(rows).as_text() for rows in (64, 512))
    assert few.count("dynamic_update_slice") == many.count("dynamic_update_slice") > 0
    assert few.count("\n") == many.count("\n")


@pytest.mark.optimized
@pytest.mark.parametrize("rows", [5, 64])
def test_a_write_copies_no_cache(rows):
    program = _append(rows).compile().as_text()
    cache = f"f32[{','.join(map(str, empty(rows).keys.shape))}]"
    assert program.count(cache) > 2
    assert not re.findall(rf"= {re.escape(cache)}\S* (?:copy|copy-start)\(.*", program)
