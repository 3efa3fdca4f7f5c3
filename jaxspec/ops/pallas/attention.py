"""Computes the attention of a few fed tokens over the cache: one TPU kernel that reads each row's live slots once.

Before any sum, a row's fed tokens are placed at the slots after its cached ones, in blocks that begin at fixed slots.
The softmax is accumulated block by block (Milakov & Gimelshein 1805.02867). With blocks of 4, and a row that holds 6
tokens:

                     cache          block with fed tokens
    chain x y        a b c d        e f x y       one for all queries
    tree, in order   a b c d        e f x y       one for all queries, of which each sees its own ancestors
    tree, by path    a b c d        e f y .       of query y: as in plain decoding

Blocks beyond a row's tokens are neither read nor computed. The grid is the rows, and the blocks of the longest one.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int, Shaped

from jaxspec.core.pytree import register_dataclass
from jaxspec.ops.pallas.write import in_main_memory, place, place_row, product

# Divides every cache's capacity; equal in every pass, since it affects the bits.
BLOCK = 256
_LOWEST = -1e30
# Scalars of a row fill all lanes of a register: a single lane would have to be broadcast for each block.
_LANES = 128
_MOST_VMEM = 64 * 2**20


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """Holds keys and values by slot for kernels: of a cache's layers, or, without the first axis, of fed tokens.

    Attributes:
      keys: the keys, integers if there are scales.
      values: the values, integers if there are scales.
      key_scale: multiplies each key.
      value_scale: multiplies each value.
    """

    keys: Shaped[Array, "*l b g s d"]
    values: Shaped[Array, "*l b g s d"]
    key_scale: Float[Array, "*l b g s"] | None = None
    value_scale: Float[Array, "*l b g s"] | None = None

    def parts(self) -> list[Array]:
        """Returns the arrays that are not `None`, keys and values first."""
        return [x for x in (self.keys, self.values, self.key_scale, self.value_scale) if x is not None]


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
    sinks: Float[Array, "g r"] | None = None,
    interpret: bool = False,
) -> Float[Array, "b t g r d"]:
    """Attends from each fed token to the cached ones and to those fed tokens that it sees.

    Args:
      queries: the queries, `r` heads per key-value head.
      fed: the keys and values of the fed tokens, after those of pending ones.
      places: the place after the row's last cached token where query `t` sees token `u`, from 0; negative if it does
        not see it. Unless `by_path`, a visible token is at its own index.
      oldest: the first slot that each query sees; `None` is all.
      cache: the keys and values of all layers.
      length: the number of cached tokens of each row.
      layer: the layer to read.
      scale: the factor of every score.
      by_path: whether places differ by query; the blocks with fed tokens are then computed once for each query.
      sinks: each query head's score without a value, or `None`.
      interpret: whether to run as ordinary operations, on any platform.
    """
    batch, time, heads, group, width = queries.shape
    count, rows = places.shape[2], time * group
    # In the layout of the products before and after: rearranged outside the kernel, they would be copied twice.
    operands = [jnp.einsum("btgrd->bgrtd", queries), jnp.tile(places, (1, group, 1)), *fed.parts()]
    flat = jax.ShapeDtypeStruct((batch, time, heads * group * width), queries.dtype)
    if oldest is not None:
        operands.insert(2, jnp.tile(oldest, (1, group))[..., None])
    begun = [] if sinks is None else [_begun(sinks, time)]
    state = [pltpu.VMEM((heads, rows, size), jnp.float32) for size in (width, width, _LANES, _LANES)]
    kernel = functools.partial(
        _kernel,
        sunk=sinks is not None,
        windowed=oldest is not None,
        scale=scale,
        time=time,
        by_path=by_path and count > 1,
    )
    found = pl.pallas_call(
        kernel,
        out_shape=flat,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, jax.lax.div(jnp.max(length) + (count + BLOCK - 1), jnp.int32(BLOCK))),
            in_specs=[*map(_of_all, begun), *map(_of_row, operands), *(_of_layer(x, layer) for x in cache.parts())],
            out_specs=_of_row(flat),
            scratch_shapes=state,
        ),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_MOST_VMEM),
        interpret=interpret,
        name="attend",
    )(length, *begun, *operands, *(in_main_memory(x, interpret=interpret) for x in cache.parts()))
    return found.reshape(queries.shape)


def _begun(sinks: Float[Array, "g r"], time: int) -> Float[Array, "g n 128"]:
    """Returns the sink of each row of queries, in all lanes."""
    heads, group = sinks.shape
    return jnp.broadcast_to(sinks.astype(jnp.float32)[:, :, None, None], (heads, group, time, _LANES)).reshape(
        heads, group * time, _LANES
    )


def _of_all(x: Any) -> pl.BlockSpec:
    return pl.BlockSpec(x.shape, lambda row, index, length: (0,) * x.ndim)


def _of_row(x: Any) -> pl.BlockSpec:
    return pl.BlockSpec((1, *x.shape[1:]), lambda row, index, length: (row, *(0,) * (x.ndim - 1)))


def _of_layer(x: Array, layer: int) -> pl.BlockSpec:
    """Reads a block of slots of a row in one layer. Past the last live block, requests it again: nothing is copied."""

    def live(row: Any, index: Any, length: Any) -> tuple[Any, ...]:
        last = jax.lax.div(jnp.maximum(length[row] - 1, 0), jnp.int32(BLOCK))
        return layer, row, 0, jnp.minimum(index, last), *(0,) * (x.ndim - 4)

    return pl.BlockSpec((1, 1, x.shape[2], BLOCK, *x.shape[4:]), live)


def _kernel(length: Any, *refs: Any, sunk: bool, windowed: bool, scale: float, time: int, by_path: bool) -> None:
    rest = list(refs)
    sinks = rest.pop(0) if sunk else None
    queries, places = rest.pop(0), rest.pop(0)
    oldest = rest.pop(0)[0] if windowed else None
    out, asking, state, slots = rest[-5], rest[-4], rest[-3:], rest[:-5]
    fed, cached = slots[: len(slots) // 2], slots[len(slots) // 2 :]
    row, index = pl.program_id(0), pl.program_id(1)
    heads, count = fed[0].shape[1:3]
    start, offset = index * BLOCK, index * BLOCK - length[row]
    add = functools.partial(_add, state, asking, wide=queries.dtype, scale=scale)

    pl.when(index == 0)(functools.partial(_begin, queries, sinks, asking, state))

    def of_cached():
        seen = None if oldest is None else _slots(start) >= oldest
        for head in range(heads):
            add(head, [x[0, 0, head : head + 1] if len(x.shape) == 4 else x[0, 0, head] for x in cached], seen)

    def of_fed():
        def with_fed(own, query):
            """Adds the block with the fed tokens at these places; only for `query`, unless it is `None`."""
            seen = _seen(places[0], own, offset)
            seen = seen if oldest is None else seen & (_slots(start) >= oldest)
            rows = None if query is None else _rows(places.shape[1], time, query)
            for head in range(heads):
                add(head, [_placed(own, offset, *both, head) for both in zip(fed, cached, strict=True)], seen, rows)

        if not by_path:
            with_fed(jax.lax.broadcasted_iota(jnp.int32, (1, count), 1), None)
        else:
            each = lambda query, _: with_fed(places[0, pl.ds(query, 1), :], query)  # noqa: E731
            jax.lax.fori_loop(0, time, each, None)

    # Two branches of one condition, so that `compile-report` counts the longer one instead of both.
    jax.lax.cond(offset + BLOCK <= 0, of_cached, lambda: pl.when(offset < count)(of_fed))

    @pl.when(index == pl.num_programs(1) - 1)
    def _():
        group, _, width = queries.shape[2:]
        state[0][...] = state[0][...] / _across(state[1][...], width)
        for head, each, rows in _queries(queries):
            at = (head * group + each) * width
            out[0, :, at : at + width] = state[0][head, rows].astype(out.dtype)


def _begin(queries: Any, sinks: Any, asking: Any, state: list[Any]) -> None:
    """Reads the queries, and begins the running softmaxes: with nothing, or with the sinks."""
    for head, each, rows in _queries(queries):
        asking[head, rows] = queries[0, head, each].astype(jnp.float32)
    for part, value in zip(state, (0.0, 0.0, _LOWEST), strict=True):
        part[...] = jnp.full_like(part, value)
    if sinks is not None:
        state[1][...], state[2][...] = jnp.ones_like(state[1]), sinks[...]


def _queries(queries: Any) -> list[tuple[int, int, slice]]:
    """Lists for each query head its key-value head, its index there, and the rows of its tokens."""
    _, heads, group, time, _ = queries.shape
    return [(head, each, slice(each * time, (each + 1) * time)) for head in range(heads) for each in range(group)]


def _slots(start: Any) -> Int[Array, "1 s"]:
    return start + jax.lax.broadcasted_iota(jnp.int32, (1, BLOCK), 1)


def _across(x: Float[Array, "... 128"], size: int) -> Float[Array, "... size"]:
    """Resizes the last axis, along which all numbers are equal."""
    times = -(-size // _LANES)
    return jnp.concatenate([x] * times, axis=-1)[..., :size]


def _rows(count: int, time: int, query: Any) -> Array:
    """Returns whether each of `count` rows is a head of the query, `[count, 1]`."""
    row = jax.lax.broadcasted_iota(jnp.int32, (count, 1), 0)
    return jax.lax.rem(row, jnp.int32(time)) == query


def _seen(places: Int[Array, "n u"], own: Int[Array, "1 u"], offset: Any) -> Array:
    """Returns whether each row sees each slot of a block, `[n, s]`: cached slots, and fed tokens at `own`."""
    there = offset + jax.lax.broadcasted_iota(jnp.int32, (BLOCK, 1), 0) == own
    fed = product((places >= 0).astype(jnp.bfloat16), there.astype(jnp.bfloat16), 1)
    return (_slots(offset) < 0) | (fed > 0)


def _placed(own: Int[Array, "1 u"], offset: Any, fed: Any, cached: Any, head: int) -> Array:
    """Returns a head's block, fed tokens included: vectors, `[s, d]`, or scales, `[1, s]`."""
    if len(cached.shape) == 4:
        return place_row(own, offset, fed[0, head : head + 1], cached[0, 0, head : head + 1])
    return place(own, offset, fed[0, head], cached[0, 0, head])


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
    """Adds a block of slots to the running softmax of a head's rows, or of only some rows."""
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
