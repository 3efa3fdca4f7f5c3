"""Rows of a state: which axis of each array they have, and taking, inserting and gathering them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.rows import RowAxes, row_axes
from jaxspec.nn.attention_by_slot import BySlotHalfKVCache, BySlotInt8KVCache, BySlotKVCache
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_half import HalfKVCache, NativeHalfKVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.cache_pallas import BySlotPallasInt8KVCache, BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from tests._fixtures import tiny

TARGET = tiny.transformer(3, layers=2)


def made(batch):
    """Rows first, third and nowhere; keys; and an array that all rows share."""
    number = jnp.arange(batch, dtype=jnp.int32)
    return {
        "first": number,
        "third": jnp.broadcast_to(number[None, None, :, None], (2, 3, batch, 5)),
        "shared": jnp.arange(3, dtype=jnp.int32),
        "keys": jax.random.split(jax.random.key(0), batch),
    }


def numbers(state):
    assert (np.asarray(state["third"]) == np.asarray(state["first"])[:, None]).all()
    assert state["shared"].tolist() == [0, 1, 2]
    return state["first"].tolist()


def test_each_leaf_has_its_own_axis():
    axes = row_axes(made)
    assert axes.axes == (0, 0, None, 2)  # in order of their names
    assert hash(axes) == hash(row_axes(made))
    assert axes.count(made(4)) == 4


def test_rows_are_taken_inserted_gathered_and_repeated():
    axes, state = row_axes(made), made(4)
    assert numbers(axes.take(state, 2)) == [2]
    assert numbers(jax.jit(axes.take)(state, jnp.int32(3))) == [3]
    assert numbers(jax.jit(axes.insert)(state, axes.take(state, 3), jnp.int32(1))) == [0, 3, 2, 3]
    for rows in ([3, 0, 0], [2, 1, 0, 3], [0, 1, 2, 3, 3, 2, 1, 0], [1]):
        gathered = jax.jit(axes.gather)(state, jnp.asarray(rows))
        assert numbers(gathered) == rows
        assert (gathered["keys"] == state["keys"][np.array(rows)]).all()
    assert numbers(axes.repeat(state, 2)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_program_for_all_rows_and_slots():
    axes, state = row_axes(made), made(4)
    take, insert = jax.jit(axes.take), jax.jit(axes.insert)
    for row in range(4):
        state = insert(state, take(state, row), 3 - row)
    assert (take._cache_size(), insert._cache_size()) == (1, 1)


def test_an_insert_writes_in_place():
    axes = row_axes(lambda batch: TARGET.init_cache(batch, 32))
    state = TARGET.init_cache(4, 32)
    compiled = jax.jit(axes.insert, donate_argnums=0).lower(state, axes.take(state, 0), 1).compile().memory_analysis()
    assert compiled.alias_size_in_bytes >= sum(x.nbytes for x in jax.tree.leaves(state))
    assert compiled.temp_size_in_bytes < state.keys.nbytes / 4


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda batch: {"mask": jnp.zeros((batch, 7, batch))}, r"\['mask'\] has shape \(2, 7, 2\) for 2 rows"),
        (
            lambda batch: {"heads": jnp.zeros((batch * 4, 7))},
            r"\['heads'\] has shape \(8, 7\) for 2 rows",
        ),
        (lambda batch: jnp.zeros(batch + 1), r"the state has shape \(3,\) for 2 rows"),
    ],
)
def test_rows_without_an_axis_of_their_own_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        row_axes(make)


def test_a_row_of_another_size_or_structure_is_refused():
    axes, state = row_axes(made), made(2)
    wide = axes.take(state, 0) | {"third": jnp.zeros((2, 3, 1, 6), jnp.int32)}
    with pytest.raises(ValueError, match=r"\['third'\] has shape .*, so its rows have shape \(2, 3, 1, 5\), got"):
        axes.insert(state, wide, 0)
    with pytest.raises(ValueError, match="a state with the structure"):
        axes.take({"first": state["first"]}, 0)


def test_with_parts_the_axes_are_found_once():
    calls = []

    def make(batch, part):
        calls.append(batch)
        return jnp.zeros((part.shape[0], batch))

    found = [row_axes(make, jnp.zeros(size)) for size in (4, 4, 5)]
    assert [one.axes for one in found] == [(1,)] * 3
    assert calls == [2, 3] * 2


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Shared:
    """A leaf that all rows share, of a tree that has no other."""

    table: jax.Array


def test_axes_of_a_tree():
    axes = RowAxes.of({"rows": 1, "table": _Shared(-1)})
    assert axes.axes == (1, None)
    state = {"rows": jnp.asarray([[1, 2], [3, 4]]), "table": _Shared(jnp.asarray([7]))}
    assert axes.take(state, 1)["rows"].tolist() == [[2], [4]]


KINDS = [
    KVCache,
    Int8KVCache,
    BySlotKVCache,
    BySlotInt8KVCache,
    NativeKVCache,
    HalfKVCache,
    BySlotHalfKVCache,
    NativeHalfKVCache,
    PallasKVCache,
    PallasInt8KVCache,
    BySlotPallasKVCache,
    BySlotPallasInt8KVCache,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_cache(kind):
    """A row that moves takes all of its slots along, and no other row's."""
    empty = lambda batch: kind.empty(layers=2, batch=batch, heads=1, capacity=32, head_dim=8, dtype=jnp.float32)
    axes, cache = row_axes(empty), empty(4)
    rng = np.random.default_rng(0)
    draw = lambda x: jnp.asarray(rng.integers(0, 100, x.shape), x.dtype)
    cache = jax.tree.map(draw, cache)
    assert None not in axes.axes
    found, rows = axes.gather(cache, jnp.asarray([2, 0, 2, 3])), np.array([2, 0, 2, 3])
    for x, y, axis in zip(jax.tree.leaves(found), jax.tree.leaves(cache), axes.axes, strict=True):
        np.testing.assert_array_equal(x, np.take(np.asarray(y), rows, axis=axis))
