"""Computes the attention of a few fed tokens over the cache: one TPU kernel that reads each row's live slots once.

A row's fed tokens are put at the slots behind its cached ones before anything is summed, in blocks that begin at fixed
slots; the softmax is accumulated block by block (Milakov & Gimelshein 1805.02867). With blocks of 4, and a row that
holds 6 tokens:

                     cache          block with fed tokens
    chain x y        a b c d        e f x y       one for all queries
    tree, in order   a b c d        e f x y       one for all queries, of which each sees its own ancestors
    tree, by path    a b c d        e f y .       of query y: as plain decoding would find them

Blocks beyond a row's tokens are neither read nor computed. The grid is the rows, and the blocks of the longest one.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int

from jaxspec.ops.pallas.memory import in_main_memory
from jaxspec.ops.pallas.place import place, place_row, product
from jaxspec.ops.slots import Slots

# Divides every cache's capacity; the same for every pass, whose bits it would change.
BLOCK = 256
_LOWEST = -1e30
# A number of a row stands in all lanes of a register: one lane would have to be spread for each block.
_LANES = 128
_MOST_VMEM = 64 * 2**20


def attend(
    queries: Float[Array, "b t g r d"],
    fed: Slots,
    places: Int[Array, "b t u"],
    oldest: Int[Array, "b t"] | None,
    cache: Slots,
    length: Int[Array, "b"],
    *,
    layer: int,
    scale: float,
    by_path: bool,
    interpret: bool = False,
) -> Float[Array, "b t g r d"]:
    """Attends from each fed token to the cached ones and to those fed tokens that it sees.

    Args:
      queries: `r` heads for each key-value head.
      fed: keys and values of the fed tokens, and of pending ones before them.
      places: how many slots behind the row's last cached token query `t` sees token `u`, from 0; negative if it does
        not see it. Unless `by_path`, a token that is seen is at its own index.
      oldest: the first slot that each query sees; `None` is all.
      cache: keys and values of all layers.
      length: cached tokens of each row.
      layer: which of them.
      scale: multiplies every score.
      by_path: whether queries see tokens at places of their own: then the blocks with fed tokens are computed once for
        each query.
      interpret: run as ordinary operations, on any platform.
    """
    batch, time, heads, group, width = queries.shape
    count, rows = places.shape[2], time * group
    # As the product before writes them, and the one behind reads them: rearranged outside, they would be copied twice.
    operands = [jnp.einsum("btgrd->bgrtd", queries), jnp.tile(places, (1, group, 1)), *fed.parts()]
    flat = jax.ShapeDtypeStruct((batch, time, heads * group * width), queries.dtype)
    if oldest is not None:
        operands.insert(2, jnp.tile(oldest, (1, group))[..., None])
    state = [pltpu.VMEM((heads, rows, size), jnp.float32) for size in (width, width, _LANES, _LANES)]
    kernel = functools.partial(
        _kernel, windowed=oldest is not None, scale=scale, time=time, by_path=by_path and count > 1
    )
    found = pl.pallas_call(
        kernel,
        out_shape=flat,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, jax.lax.div(jnp.max(length) + (count + BLOCK - 1), jnp.int32(BLOCK))),
            in_specs=[*map(_of_row, operands), *(_of_layer(x, layer) for x in cache.parts())],
            out_specs=_of_row(flat),
            scratch_shapes=state,
        ),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_MOST_VMEM),
        interpret=interpret,
        name="attend",
    )(length, *operands, *(in_main_memory(x, interpret=interpret) for x in cache.parts()))
    return found.reshape(queries.shape)


def _of_row(x: Any) -> pl.BlockSpec:
    """Reads all of a row of the batch."""
    return pl.BlockSpec((1, *x.shape[1:]), lambda row, index, length: (row, *(0,) * (x.ndim - 1)))


def _of_layer(x: Array, layer: int) -> pl.BlockSpec:
    """Reads a block of slots of a row, in one layer; beyond the live ones the last of these, which is there already."""

    def live(row: Any, index: Any, length: Any) -> tuple[Any, ...]:
        last = jax.lax.div(jnp.maximum(length[row] - 1, 0), jnp.int32(BLOCK))
        return layer, row, 0, jnp.minimum(index, last), *(0,) * (x.ndim - 4)

    return pl.BlockSpec((1, 1, x.shape[2], BLOCK, *x.shape[4:]), live)


def _kernel(length: Any, *refs: Any, windowed: bool, scale: float, time: int, by_path: bool) -> None:
    (queries, places), rest = refs[:2], list(refs[2:])
    oldest = rest.pop(0)[0] if windowed else None
    out, asking, state, slots = rest[-5], rest[-4], rest[-3:], rest[:-5]
    fed, cached = slots[: len(slots) // 2], slots[len(slots) // 2 :]
    row, index = pl.program_id(0), pl.program_id(1)
    heads, count = fed[0].shape[1:3]
    start, behind = index * BLOCK, index * BLOCK - length[row]
    add = functools.partial(_add, state, asking, wide=queries.dtype, scale=scale)

    @pl.when(index == 0)
    def _():
        for head, each, rows in _queries(queries):
            asking[head, rows] = queries[0, head, each].astype(jnp.float32)
        for part, value in zip(state, (0.0, 0.0, _LOWEST), strict=True):
            part[...] = jnp.full_like(part, value)

    def of_cached():
        seen = None if oldest is None else _slots(start) >= oldest
        for head in range(heads):
            add(head, [x[0, 0, head : head + 1] if len(x.shape) == 4 else x[0, 0, head] for x in cached], seen)

    def of_fed():
        def with_fed(own, query):
            """Adds the block with the fed tokens at these places; of `query` alone, unless it is none."""
            seen = _seen(places[0], own, behind)
            seen = seen if oldest is None else seen & (_slots(start) >= oldest)
            rows = None if query is None else _rows(places.shape[1], time, query)
            for head in range(heads):
                add(head, [_placed(own, behind, *both, head) for both in zip(fed, cached, strict=True)], seen, rows)

        if not by_path:
            with_fed(jax.lax.broadcasted_iota(jnp.int32, (1, count), 1), None)
        else:
            each = lambda query, _: with_fed(places[0, pl.ds(query, 1), :], query)  # noqa: E731
            jax.lax.fori_loop(0, time, each, None)

    # Two branches of one condition, so that `compile-report` counts the longer and not both.
    jax.lax.cond(behind + BLOCK <= 0, of_cached, lambda: pl.when(behind < count)(of_fed))

    @pl.when(index == pl.num_programs(1) - 1)
    def _():
        group, _, width = queries.shape[2:]
        state[0][...] = state[0][...] / _across(state[1][...], width)
        for head, each, rows in _queries(queries):
            at = (head * group + each) * width
            out[0, :, at : at + width] = state[0][head, rows].astype(out.dtype)


def _queries(queries: Any) -> list[tuple[int, int, slice]]:
    """Lists each query head by its key-value head and its place there, and the rows of its tokens among those."""
    _, heads, group, time, _ = queries.shape
    return [(head, each, slice(each * time, (each + 1) * time)) for head in range(heads) for each in range(group)]


def _slots(start: Any) -> Int[Array, "1 s"]:
    return start + jax.lax.broadcasted_iota(jnp.int32, (1, BLOCK), 1)


def _across(x: Float[Array, "... 128"], size: int) -> Float[Array, "... size"]:
    """Returns numbers that are alike along the last axis, with so many there."""
    times = -(-size // _LANES)
    return jnp.concatenate([x] * times, axis=-1)[..., :size]


def _rows(count: int, time: int, query: Any) -> Array:
    """Returns which of `count` rows are heads of a query, `[count, 1]`."""
    row = jax.lax.broadcasted_iota(jnp.int32, (count, 1), 0)
    return jax.lax.rem(row, jnp.int32(time)) == query


def _seen(places: Int[Array, "n u"], own: Int[Array, "1 u"], behind: Any) -> Array:
    """Returns which slots of a block each row sees, `[n, s]`: cached ones, and fed tokens that stand at `own`."""
    there = behind + jax.lax.broadcasted_iota(jnp.int32, (BLOCK, 1), 0) == own
    fed = product((places >= 0).astype(jnp.bfloat16), there.astype(jnp.bfloat16), 1)
    return (_slots(behind) < 0) | (fed > 0)


def _placed(own: Int[Array, "1 u"], behind: Any, fed: Any, cached: Any, head: int) -> Array:
    """Returns a head's block with the fed tokens in it: vectors, `[s, d]`, or scales, `[1, s]`."""
    if len(cached.shape) == 4:
        return place_row(own, behind, fed[0, head : head + 1], cached[0, 0, head : head + 1])
    return place(own, behind, fed[0, head], cached[0, 0, head])


def _add(
    state: list[Any],
    asking: Any,
    head: int,
    block: list[Array],
    seen: Any,
    rows: Any = None,
    *,
    wide: Any,
    scale: float,
) -> None:
    """Adds a block of slots to the unfinished softmax of a head's rows, or of some of them alone."""
    keys, values, *scales = block
    before = weighted, weight, maximum = [part[head] for part in state]
    scores = product(asking[head].astype(wide), keys.astype(wide), 1) * scale
    if scales:
        scores = scores * scales[0]
    if seen is not None:
        scores = jnp.where(seen, scores, -jnp.inf)
    most = jnp.maximum(maximum, jnp.max(scores, axis=1, keepdims=True))
    shrink = jnp.exp(maximum - most)
    weights = jnp.exp(scores - _across(most, BLOCK))
    mixed = product((weights * scales[1] if scales else weights).astype(wide), values.astype(wide), 0)
    weight = weight * shrink + jnp.sum(weights, axis=1, keepdims=True)
    found = weighted * _across(shrink, mixed.shape[1]) + mixed, weight, most
    for part, old, new in zip(state, before, found, strict=True):
        part[head] = new if rows is None else jnp.where(rows, new, old)
