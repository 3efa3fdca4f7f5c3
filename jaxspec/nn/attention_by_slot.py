"""Computes attention whose bits depend on a token's text alone, and not on what is fed with it.

A query sees its keys at the slots where plain decoding would find them, in blocks that begin at fixed slots, whatever
of a block is in the cache already and what is fed with the query. With blocks of 4, and a row that holds 6 tokens:

                     cache          blocks with fed tokens
    chain x y        a b c d        e f x y | . . . .          one for all queries
    tree, x and      a b c d        e f x . | . . . .          of query x
    y after e                       e f y . | . . . .          of query y

Products have one shape: as many queries, a block of keys. A tree's are computed once for each query, with all queries,
of which one counts; so a node has the bits that it would have in a chain.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.sums import rounded, row_sum
from jaxspec.nn.attention import Fresh, Softmax, mix, scores_of, within
from jaxspec.nn.cache import KVCache

# Divides every cache's capacity.
_BLOCK = 128


def attend_by_slot(
    queries: Float[Array, "b t g r d"],
    fresh: Fresh,
    cache: KVCache,
    layer: int,
    *,
    scale: float,
    window: int | None,
) -> Float[Array, "b t g r d"]:
    """Attends as `jaxspec.nn.attention.attend` does; slot `i` of the cache must hold the token at position `i`."""
    queries = jnp.einsum("btgrd->bgrtd", queries)
    positions = fresh.positions[:, -queries.shape[3] :]
    first = cache.length // _BLOCK  # each row's first block with fed tokens
    slots = jnp.arange(_BLOCK, dtype=jnp.int32)

    def visit(index, state):
        start = index * _BLOCK
        seen = (index < first)[:, None, None] & within(positions, (start + slots)[None], window)
        return _add(state, queries, *cache.block(layer, start, _BLOCK), seen, scale)

    with jax.named_scope(f"history_by_{_BLOCK}"):
        blocks = jnp.max(first)
        state = jax.lax.fori_loop(jnp.zeros((), blocks.dtype), blocks, visit, Softmax.empty(queries))
    add = functools.partial(
        _add_fed, queries=queries, fresh=fresh, cache=cache, layer=layer, scale=scale, window=window
    )
    for behind in range(-(-(_BLOCK - 1 + fresh.keys.shape[1]) // _BLOCK)):
        state = add(state, (first + behind)[:, None] * _BLOCK + slots[None])
    out = state.weighted / state.weight[..., None]
    return jnp.einsum("bgrtd->btgrd", out).astype(fresh.values.dtype)


def _add_fed(
    state: Softmax,
    slots: Int[Array, "b s"],
    *,
    queries: Float[Array, "b g r t d"],
    fresh: Fresh,
    cache: KVCache,
    layer: int,
    scale: float,
    window: int | None,
) -> Softmax:
    """Adds each row's block of cached and fed tokens at these slots."""
    order, count = _paths(fresh, queries.shape[3])
    behind = slots - cache.length[:, None]  # fed tokens stand at 0, 1, ...
    at = jnp.broadcast_to(jnp.clip(behind, 0, order.shape[2] - 1)[:, None], (*order.shape[:2], slots.shape[1]))
    order = jnp.take_along_axis(order, at, axis=2)
    cached = behind < 0
    # Not by index: where devices hold some rows each, none asks for another's.
    of_row = jax.vmap(lambda row, at: row[at])
    seen = cached[:, None] | (behind[:, None] < count[..., None])
    if window is not None:
        places = jnp.where(cached[:, None], slots[:, None], of_row(fresh.positions, order))
        seen = seen & (places > fresh.positions[:, -queries.shape[3] :, None] - window)
    held = cache.block(layer, slots[:, 0], slots.shape[1])
    keys, values = (
        jnp.where(cached[:, None, None, :, None], old[:, None], jnp.moveaxis(of_row(new, order), 2, 3))
        for old, new in zip(held, (fresh.keys, fresh.values), strict=True)
    )
    if fresh.mask is None:
        return _add(state, queries, keys[:, 0], values[:, 0], seen, scale)
    return _add_own(state, queries, keys, values, seen, scale)


def _paths(fresh: Fresh, count: int) -> tuple[Int[Array, "b n u"], Int[Array, "b #t"]]:
    """Returns the fed tokens that each query sees, in order and at the front, and their number.

    The order is one for all queries of a chain.
    """
    if fresh.mask is None:
        batch, fed = fresh.positions.shape
        order = jnp.broadcast_to(jnp.arange(fed, dtype=jnp.int32)[None, None], (batch, 1, fed))
        return order, jnp.broadcast_to(jnp.arange(fed - count, fed, dtype=jnp.int32)[None] + 1, (batch, count))
    return jnp.argsort(~fresh.mask, axis=2, stable=True).astype(jnp.int32), jnp.sum(fresh.mask, axis=2, dtype=jnp.int32)


def _add(
    state: Softmax,
    queries: Float[Array, "b g r t d"],
    keys: Float[Array, "b g s d"],
    values: Float[Array, "b g s d"],
    seen: Bool[Array, "b #t #s"],
    scale: float,
) -> Softmax:
    """Adds keys that all queries share."""
    # Without barriers a product may be of operands in another layout, and sum in another order.
    queries, keys, values = jax.lax.optimization_barrier((queries, keys, values))
    scores = scores_of(queries, keys, scale)
    return _accumulate(state, scores, lambda weights: mix(weights, values), seen)


def _add_own(
    state: Softmax,
    queries: Float[Array, "b g r t d"],
    keys: Float[Array, "b t g s d"],
    values: Float[Array, "b t g s d"],
    seen: Bool[Array, "b #t #s"],
    scale: float,
) -> Softmax:
    """Adds keys of which each query has its own."""
    batch, count = keys.shape[:2]
    flat = lambda x: x.reshape(batch * count, *x.shape[2:])  # noqa: E731
    each = lambda x: flat(jnp.broadcast_to(x[:, None], (batch, count, *x.shape[1:])))  # noqa: E731
    one = lambda x: _diagonal(x.reshape(batch, count, *x.shape[1:]))  # noqa: E731
    many, keys, values = jax.lax.optimization_barrier((each(queries), flat(keys), flat(values)))
    mixed = lambda weights: one(mix(jax.lax.optimization_barrier(each(weights)), values))  # noqa: E731
    return _accumulate(state, one(scores_of(many, keys, scale)), mixed, seen)


def _diagonal(x: Float[Array, "b t g r t n"]) -> Float[Array, "b g r t n"]:
    """Takes from the product with each query's keys that query's row."""
    at = jnp.arange(x.shape[1], dtype=jnp.int32)
    return jnp.moveaxis(x[:, at, :, :, at], 0, 3)


def _accumulate(
    state: Softmax,
    scores: Float[Array, "b g r t s"],
    mixed: Callable[[Array], Array],
    seen: Bool[Array, "b #t #s"],
) -> Softmax:
    """Adds scores, and values that `mixed` sums by their weights, to unfinished softmaxes."""
    scores = jnp.where(seen[:, None, None], rounded(scores), -jnp.inf)
    maximum = jnp.maximum(state.maximum, jnp.max(scores, axis=-1))
    shrink = jnp.exp(state.maximum - maximum)
    weights = jnp.exp(scores - maximum[..., None])
    return Softmax(
        rounded(state.weighted * shrink[..., None]) + mixed(weights),
        rounded(state.weight * shrink) + row_sum(weights),
        maximum,
    )
