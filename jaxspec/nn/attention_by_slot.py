"""Computes attention whose bits depend only on a token's text, not on the tokens fed with it; and the caches for it.

A query sees its keys at the slots of plain decoding, in blocks that begin at fixed slots, regardless of which of a
block's tokens are cached and which are fed with the query. With blocks of 4, and a row that holds 6 tokens:

                     cache          blocks with fed tokens
    chain x y        a b c d        e f x y | . . . .          one for all queries
    tree, x and      a b c d        e f x . | . . . .          of query x
    y after e                       e f y . | . . . .          of query y

Products have one shape: all queries, a block of keys. A tree's are computed once per query, with all queries, of which
one counts; so a node has the bits that it would have in a chain.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import rounded, row_sum
from jaxspec.nn.attention import Fresh, Softmax, mix, scores_of, within
from jaxspec.nn.cache import KVCache, LayerNumber
from jaxspec.nn.cache_half import HalfKVCache
from jaxspec.nn.cache_int8 import Int8KVCache

# Divides every cache's capacity.
_BLOCK = 128


def attend_by_slot(
    queries: Float[Array, "b t g r d"],
    fresh: Fresh,
    cache: KVCache,
    layer: LayerNumber,
    *,
    scale: float,
    window: int | None,
) -> Float[Array, "b t g r d"]:
    """Attends like `jaxspec.nn.attention.attend`; slot `i` of the cache must hold the token at position `i`."""
    queries = jnp.einsum("btgrd->bgrtd", queries)
    positions = fresh.positions[:, -queries.shape[3] :]
    first = cache.length // _BLOCK  # each row's first block with fed tokens
    slots = jnp.arange(_BLOCK, dtype=jnp.int32)

    def visit(index, state):
        start = index * _BLOCK
        seen = (index < first)[:, None, None] & within(positions, (start + slots)[None], window)
        return _add(state, queries, *cache.block(layer, start, _BLOCK), seen, scale)

    def add_fed(state: Softmax, slots: Int[Array, "b s"]) -> Softmax:
        """Adds each row's block of cached and fed tokens at these slots."""
        order, count = _paths(fresh, queries.shape[3])
        offset = slots - cache.length[:, None]  # fed tokens are at 0, 1, ...
        at = jnp.broadcast_to(jnp.clip(offset, 0, order.shape[2] - 1)[:, None], (*order.shape[:2], slots.shape[1]))
        order = jnp.take_along_axis(order, at, axis=2)
        cached = offset < 0
        # Not by index: devices that hold some rows each do not request the others.
        of_row = jax.vmap(lambda row, at: row[at])
        seen = cached[:, None] | (offset[:, None] < count[..., None])
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

    with jax.named_scope(f"history_by_{_BLOCK}"):
        blocks = jnp.max(first)
        state = jax.lax.fori_loop(jnp.zeros((), blocks.dtype), blocks, visit, Softmax.empty(queries))
    for later in range(-(-(_BLOCK - 1 + fresh.keys.shape[1]) // _BLOCK)):
        state = add_fed(state, (first + later)[:, None] * _BLOCK + slots[None])
    return jnp.einsum("bgrtd->btgrd", state.values(fresh.sinks)).astype(fresh.values.dtype)


def _paths(fresh: Fresh, count: int) -> tuple[Int[Array, "b n u"], Int[Array, "b #t"]]:
    """Returns the fed tokens that each query sees, in order and at the front, and their number.

    All queries of a chain share one order.
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
    # Without barriers, a product's operands may get another layout, and its sums another order.
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
    """Adds separate keys of each query."""
    batch, count = keys.shape[:2]
    flat = lambda x: x.reshape(batch * count, *x.shape[2:])  # noqa: E731
    each = lambda x: flat(jnp.broadcast_to(x[:, None], (batch, count, *x.shape[1:])))  # noqa: E731
    # Selects each query's row from the product with its keys.
    at = jnp.arange(count, dtype=jnp.int32)
    one = lambda x: jnp.moveaxis(x.reshape(batch, count, *x.shape[1:])[:, at, :, :, at], 0, 3)  # noqa: E731
    many, keys, values = jax.lax.optimization_barrier((each(queries), flat(keys), flat(values)))
    mixed = lambda weights: one(mix(jax.lax.optimization_barrier(each(weights)), values))  # noqa: E731
    return _accumulate(state, one(scores_of(many, keys, scale)), mixed, seen)


def _accumulate(
    state: Softmax,
    scores: Float[Array, "b g r t s"],
    mixed: Callable[[Array], Array],
    seen: Bool[Array, "b #t #s"],
) -> Softmax:
    """Adds scores, and values that `mixed` sums by their weights, to running softmaxes."""
    scores = jnp.where(seen[:, None, None], rounded(scores), -jnp.inf)
    maximum = jnp.maximum(state.maximum, jnp.max(scores, axis=-1))
    shrink = jnp.exp(state.maximum - maximum)
    weights = jnp.exp(scores - maximum[..., None])
    return Softmax(
        rounded(state.weighted * shrink[..., None]) + mixed(weights),
        rounded(state.weight * shrink) + row_sum(weights),
        maximum,
    )


class _BySlot(KVCache):
    """Attends by `attend_by_slot`."""

    def attend(
        self,
        default: Callable[..., Array],
        queries: Float[Array, "b t g r d"],
        fresh: Any,
        layer: LayerNumber,
        *,
        scale: float,
        window: int | None,
    ) -> Float[Array, "b t g r d"]:
        """Computes `KVCache.attend`; a token's bits do not depend on the other fed tokens."""
        if self.positions is not None or self.capacity == 0:
            return default(queries, fresh, self)
        return attend_by_slot(queries, fresh, self, layer, scale=scale, window=window)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotKVCache(_BySlot):
    """Holds a `KVCache` for attention by slot."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotHalfKVCache(_BySlot, HalfKVCache):
    """Holds a `HalfKVCache` for attention by slot."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BySlotInt8KVCache(_BySlot, Int8KVCache):
    """Holds an `Int8KVCache` for attention by slot."""
