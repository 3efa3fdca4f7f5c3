"""Computes the attention of a few fed tokens over the cache: one GPU kernel, which contains the loop over slots.

Each program reads every `splits`-th block of a row's live slots for the query heads of one key-value head; the last one
also reads the fed tokens. Their partial softmaxes are merged after the kernel (Flash-Decoding, Dao et al. 2023). No
loop condition leaves the card: XLA's version has two in each layer, which the host waits for.

    row of 300 tokens, blocks of 64, 2 splits
    split 0      0   2   4              of 64 slots each; the last is partly live
    split 1        1   3    fed         the fed tokens, by their mask
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.ops.pallas.attention import Slots

# The slots read at once, also the maximum of fed tokens; divides every cache's capacity. Fewer for long vectors: on
# small cards a program has 99 KiB of shared memory for the queries and two blocks.
_BLOCK, _BLOCK_BYTES = 64, 64 * 256
# Query rows per program: fewer are padded, since its products take sixteen.
_LEAST_ROWS, _MOST_ROWS = 16, 64
# Programs that fill a large GPU: each partial result is written and read again.
_PROGRAMS = 128
_LOWEST = -1e30


def fits(head_dim: int) -> bool:
    """Returns whether the kernel supports heads of this size: powers of two."""
    return 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


def block_of(head_dim: int, dtype: DTypeLike) -> int:
    """Returns the number of slots read at once: 64 in bfloat16 up to heads of 128, else fewer, but at least 16."""
    longest = head_dim * jnp.dtype(dtype).itemsize
    return max(16, min(_BLOCK, _BLOCK_BYTES // longest))


def addresses(size: int, itemsize: int, devices: int = 1) -> bool:
    """Returns whether the kernels can address each element of an array.

    Triton's lowering in JAX 0.10 uses signed 32-bit offsets for arrays below 2^32 bytes, too few for single bytes.
    """
    return itemsize > 1 or size <= 2**31 or size // devices > 2**32


def attend(
    queries: Float[Array, "b t g r d"],
    fed: Slots,
    seen: Bool[Array, "b t u"],
    oldest: Int[Array, "b t"] | None,
    cache: Slots,
    length: Int[Array, "b"],
    *,
    layer: int,
    scale: float,
    sinks: Float[Array, "g r"] | None = None,
    interpret: bool = False,
) -> Float[Array, "b t g r d"]:
    """Attends from each fed token to the cached ones and to those fed tokens that it sees.

    Args:
      queries: the queries, `r` heads per key-value head.
      fed: the keys and values of the fed tokens, after those of pending ones.
      seen: whether query `t` sees fed token `u`.
      oldest: the first slot that each query sees; `None` is all.
      cache: the keys and values of all layers.
      length: the number of cached tokens of each row.
      layer: the layer to read.
      scale: the factor of every score.
      sinks: each query head's score without a value, or `None`.
      interpret: whether to run as ordinary operations, on any platform.
    """
    batch, time, heads, group, width = queries.shape
    rows = time * group
    block = block_of(width, queries.dtype)
    tile = min(max(pl.next_power_of_2(rows), _LEAST_ROWS), max(block, _LEAST_ROWS))
    tiles = -(-rows // tile)
    splits = _splits(batch * heads * tiles, cache.keys.shape[3] // block)
    operands = [queries, seen.astype(jnp.int8), *([] if oldest is None else [oldest])]
    # In the layout of the preceding products: no axis is moved.
    operands += [jnp.swapaxes(x, 1, 2) for x in fed.parts()]
    sizes = {"heads": heads, "group": group, "interpret": interpret}
    plan = _Plan(layer, scale, tile, block, splits, oldest is not None)
    found = _call(
        functools.partial(_kernel, plan=plan),
        [jax.ShapeDtypeStruct((batch, heads, splits, rows, *x), jnp.float32) for x in [(width,), (), ()]],
        (batch * heads, tiles, splits),
        name="attend",
        **sizes,
    )(length, *operands, *cache.parts())
    out = jax.ShapeDtypeStruct(queries.shape, queries.dtype)
    sunk = [] if sinks is None else [sinks.astype(jnp.float32)]
    return _call(_merge, out, (batch * heads, rows), name="merge", **sizes)(*found, *sunk)


class _Plan(NamedTuple):
    """Specifies a program: layer, score scale, and the numbers of rows, slots and splits."""

    layer: int
    scale: float
    tile: int
    block: int
    splits: int
    windowed: bool


def _call(kernel: Any, out: Any, grid: tuple[int, ...], *, heads: int, group: int, interpret: bool, name: str) -> Any:
    return pl.pallas_call(
        functools.partial(kernel, heads=heads, group=group),
        out_shape=out,
        grid=grid,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name=name,
    )


def _splits(programs: int, blocks: int) -> int:
    """Returns the number of programs that share the slots of a row: a power of two that fills the card."""
    return min(pl.next_power_of_2(max(_PROGRAMS // programs, 1)), pl.next_power_of_2(max(blocks, 1)))


def _row_and_head(heads: int) -> tuple[Any, Any]:
    return jax.lax.div(pl.program_id(0), jnp.int32(heads)), jax.lax.rem(pl.program_id(0), jnp.int32(heads))


def _kernel(length: Any, *refs: Any, plan: "_Plan", heads: int, group: int) -> None:
    """Reads a split's blocks for a tile of query rows, ordered by token, then head."""
    layer, scale, tile, block, splits, windowed = plan
    queries, seen, *rest = refs
    oldest, found = rest.pop(0) if windowed else None, rest[-3:]
    slots = rest[:-3]
    fed, cached = slots[: len(slots) // 2], slots[len(slots) // 2 :]
    (row, head), split = _row_and_head(heads), pl.program_id(2)
    number = pl.program_id(1) * tile + jnp.arange(tile, dtype=jnp.int32)
    asking = number < queries.shape[1] * group
    token, member = jax.lax.div(number, jnp.int32(group)), jax.lax.rem(number, jnp.int32(group))
    across = jnp.arange(queries.shape[-1], dtype=jnp.int32)[None]
    place = queries.at[row, token[:, None], head, member[:, None], across]
    asked = triton.load(place, mask=asking[:, None], other=0)
    first = None if oldest is None else triton.load(oldest.at[row, token], mask=asking, other=0)[:, None]
    held, add = length[row], functools.partial(_add, asked, scale=scale)

    def of_cached(index, state):
        start = (index * splits + split) * block
        slot = start + jnp.arange(block, dtype=jnp.int32)
        there = slot[None] < held
        there = there if first is None else there & (slot[None] >= first)
        keys, values, *scales = [_cached(x, (layer, row, head, pl.ds(start, block))) for x in cached]
        # Stale values may be NaN, and so is 0 times NaN.
        values = jnp.where(slot[:, None] < held, values, jnp.zeros((), values.dtype))
        return add(state, [keys, values, *scales], there)

    count = seen.shape[2]
    together = min(max(pl.next_power_of_2(count), _LEAST_ROWS), block)

    def of_fed(index, state):
        other = index * together + jnp.arange(together, dtype=jnp.int32)
        here = other < count
        vectors = [_fed(x, (row, other, head), here) for x in fed]
        there = asking[:, None] & here[None]
        return add(state, vectors, triton.load(seen.at[row, token[:, None], other[None]], mask=there, other=0) > 0)

    state = jnp.zeros(asked.shape, jnp.float32), jnp.zeros(tile, jnp.float32), jnp.full(tile, _LOWEST, jnp.float32)
    blocks = jax.lax.div(held + (block - 1), jnp.int32(block))
    own = jax.lax.div(jnp.maximum(blocks - split + (splits - 1), 0), jnp.int32(splits))
    state = jax.lax.fori_loop(jnp.int32(0), own, of_cached, state)
    pieces = jnp.where(split == splits - 1, jnp.int32(-(-count // together)), jnp.int32(0))
    state = jax.lax.fori_loop(jnp.int32(0), pieces, of_fed, state)
    triton.store(found[0].at[row, head, split, number[:, None], across], state[0], mask=asking[:, None])
    triton.store(found[1].at[row, head, split, number], state[1], mask=asking)
    triton.store(found[2].at[row, head, split, number], state[2], mask=asking)


def _merge(weighted: Any, weight: Any, maximum: Any, *refs: Any, heads: int, group: int) -> None:
    """Merges the splits' results for one query row, and its sink."""
    (*sinks, out), (row, head), number = refs, _row_and_head(heads), pl.program_id(1)
    token, member = jax.lax.div(number, jnp.int32(group)), jax.lax.rem(number, jnp.int32(group))
    parts = maximum[row, head, :, number]
    most = jnp.max(parts, axis=0)
    if sinks:
        most = jnp.maximum(most, sinks[0][head, member])
    shrink = jnp.exp(parts - most)
    total = jnp.sum(weight[row, head, :, number] * shrink, axis=0)
    if sinks:
        total = total + jnp.exp(sinks[0][head, member] - most)
    mixed = jnp.sum(weighted[row, head, :, number, :] * shrink[:, None], axis=0) / total
    out[row, token, head, member, :] = mixed.astype(out.dtype)


def _cached(x: Any, at: tuple[Any, ...]) -> Array:
    """Reads the vectors or scales of cached slots."""
    return x[at] if len(x.shape) == len(at) else x[(*at, slice(None))]


def _fed(x: Any, at: tuple[Any, Array, Any], there: Array) -> Array:
    """Reads the vectors or scales of fed tokens by index; missing ones are zeros."""
    row, number, head = at
    if len(x.shape) == len(at):
        return triton.load(x.at[row, number, head], mask=there, other=0)
    across = jnp.arange(x.shape[-1], dtype=jnp.int32)[None]
    return triton.load(x.at[row, number[:, None], head, across], mask=there[:, None], other=0)


def _add(asked: Array, state: tuple[Array, Array, Array], block: list[Array], seen: Array, *, scale: float) -> Any:
    """Adds a block of slots to the running softmax of a program's rows."""
    (weighted, weight, maximum), (keys, values, *scales) = state, block
    scores = multiply(asked, keys.astype(asked.dtype).T) * scale
    if scales:
        scores = scores * scales[0][None]
    scores = jnp.where(seen, scores, -jnp.inf)
    most = jnp.maximum(maximum, jnp.max(scores, axis=1))
    shrink, weights = jnp.exp(maximum - most), jnp.exp(scores - most[:, None])
    mixed = multiply((weights * scales[1][None] if scales else weights).astype(asked.dtype), values.astype(asked.dtype))
    return weighted * shrink[:, None] + mixed, weight * shrink + jnp.sum(weights, axis=1), most


def multiply(x: Float[Array, "n i"], y: Float[Array, "i m"]) -> Float[Array, "n m"]:
    """Multiplies matrices to float32, without rounding float32 operands."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.dot(x, y, precision=precision, preferred_element_type=jnp.float32)
