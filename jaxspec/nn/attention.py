"""Computes the attention of a few fresh tokens over a long preallocated history.

The history is read in blocks with a dynamic trip count, so that the cost depends on the used part of the cache instead
of its capacity. The softmax is accumulated online (Milakov & Gimelshein 1805.02867), and the fresh tokens' own keys are
merged last:

    slots      0 1 2 3 4 5 6 7 | fresh
    row 0      x x x x x . . . | causal or tree mask        length 5
    row 1      x x . . . . . . | causal or tree mask        length 2
"""

import dataclasses
import functools
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.compiler import kept_form
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sums import rounded
from jaxspec.nn.cache import BLOCK, KVCache, LayerNumber

_LOWEST = -1e30
# The most that an accelerator reads per visit: slots, and pairs of a row and a slot.
_MOST_SLOTS = 2048
_MOST_SCORES = 2**14
# Limits of a CPU's reads per visit: the least slots, and the most pairs of a row of the batch and a slot.
_LEAST_SLOTS = 32
_MOST_PAIRS = 2**12


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fresh:
    """Holds keys and values of the fed tokens, after those of `u - t` pending ones.

    Attributes:
      keys: the keys of pending and fed tokens.
      values: the values of pending and fed tokens.
      positions: the positions of pending and fed tokens.
      mask: whether each fed token sees each of them; `None` is a chain without pending tokens.
      sinks: each query head's sink, a score that takes weight in every softmax and adds no value; `None` without them.
    """

    keys: Float[Array, "b u g d"]
    values: Float[Array, "b u g d"]
    positions: Int[Array, "b u"]
    mask: Bool[Array, "b t u"] | None
    sinks: Float[Array, "g r"] | None = None

    @property
    def seen(self) -> Bool[Array, "b t u"]:
        """The mask, also for a chain."""
        if self.mask is not None:
            return self.mask
        batch, time = self.positions.shape
        return jnp.broadcast_to(jnp.tril(jnp.ones((time, time), jnp.bool_)), (batch, time, time))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
    """Refers to one layer of a cache. Slot `i` holds a row's token at position `i`, or `cache.positions[b, i]`."""

    cache: KVCache
    layer: LayerNumber


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Softmax:
    """Holds a running softmax: weighted values, their weight, and the maximum that both are relative to."""

    weighted: Float[Array, "b g r t d"]
    weight: Float[Array, "b g r t"]
    maximum: Float[Array, "b g r t"]

    @classmethod
    def empty(cls, queries: Float[Array, "b g r t d"]) -> Self:
        """Returns the softmax over nothing."""
        return cls(
            jnp.zeros(queries.shape, jnp.float32),
            jnp.zeros(queries.shape[:-1], jnp.float32),
            jnp.full(queries.shape[:-1], _LOWEST, jnp.float32),
        )

    def values(self, sinks: Float[Array, "g r"] | None) -> Float[Array, "b g r t d"]:
        """Divides the values by their weight and that of the sinks, if there are any."""
        if sinks is None:
            return self.weighted / self.weight[..., None]
        sinks = sinks.astype(jnp.float32)[None, :, :, None]
        maximum = jnp.maximum(self.maximum, sinks)
        shrink = jnp.exp(self.maximum - maximum)
        weight = rounded(self.weight * shrink) + jnp.exp(sinks - maximum)
        return rounded(self.weighted * shrink[..., None]) / weight[..., None]


def attend(
    queries: Float[Array, "b t g r d"], fresh: Fresh, history: History | None, *, scale: float, window: int | None
) -> Float[Array, "b t g r d"]:
    """Attends from each fed token to the whole history and to the fed tokens its mask allows.

    Args:
      queries: the queries, `r` heads for each of the `g` key-value heads.
      fresh: the fed tokens.
      history: the cache before them; the result is differentiable if it is `None` or has no slots.
      scale: the factor of every score.
      window: the number of positions that a token sees, itself included; `None` is all.
    """
    if history is None:
        return _attend(queries, fresh, None, layer=0, scale=scale, window=window)
    layer = history.layer
    default = functools.partial(_attend, layer=layer, scale=scale, window=window)
    return history.cache.attend(default, queries, fresh, layer, scale=scale, window=window)


def _attend(
    queries: Float[Array, "b t g r d"],
    fresh: Fresh,
    cache: KVCache | None,
    *,
    layer: LayerNumber,
    scale: float,
    window: int | None,
) -> Float[Array, "b t g r d"]:
    queries = jnp.einsum("btgrd->bgrtd", queries)
    positions = fresh.positions[:, -queries.shape[3] :]

    if cache is None or cache.capacity == 0:
        state = Softmax.empty(queries)
    else:
        options = {"layer": layer, "scale": scale, "window": window}
        sizes = (
            min(size, cache.capacity) for size in (_cpu_block(queries.shape[0]), _accelerator_block(positions.size))
        )
        cpu, default = (kept_form(_over_history, block=size, **options) for size in sizes)
        state = jax.lax.platform_dependent(queries, positions, cache, cpu=cpu, default=default)
    state = _accumulate(
        state,
        scores_of(queries, jnp.einsum("btgd->bgtd", fresh.keys), scale),
        jnp.einsum("btgd->bgtd", fresh.values),
        fresh.seen & within(positions, fresh.positions, window),
    )
    return jnp.einsum("bgrtd->btgrd", state.values(fresh.sinks)).astype(fresh.values.dtype)


def _over_history(
    queries: Float[Array, "b g r t d"],
    positions: Int[Array, "b t"],
    cache: KVCache,
    *,
    layer: LayerNumber,
    scale: float,
    window: int | None,
    block: int,
) -> Softmax:
    """Attends to the cache, `block` slots at a time."""
    capacity = cache.capacity

    def visit(index, state):
        # The last visit moves back to end at the cache's end, and skips slots that were already read.
        start = jnp.minimum(index * block, capacity - block)
        slots = start + jnp.arange(block, dtype=jnp.int32)
        seen = ((slots[None] >= index * block) & (slots[None] < cache.length[:, None]))[:, None]
        key_positions = jnp.broadcast_to(slots, (positions.shape[0], block))
        if cache.positions is not None:
            key_positions = jax.lax.dynamic_slice_in_dim(cache.positions, start, block, axis=1)
        seen = seen & within(positions, key_positions, window)
        keys, values = cache.block(layer, start, block)
        return _accumulate(state, scores_of(queries, keys, scale), values, seen)

    blocks = (jnp.max(cache.length) + block - 1) // block
    # The name shows readers of the compiled program how often this runs.
    with jax.named_scope(f"history_by_{block}"):
        return jax.lax.fori_loop(jnp.zeros((), blocks.dtype), blocks, visit, Softmax.empty(queries))


def _accelerator_block(rows: int) -> int:
    """Chooses how many slots an accelerator reads at once; a visit costs more than reading unused slots.

    The compiler estimates some 20,000 cycles per visit, in which a TPU reads thousands of slots. The scores of many
    rows are large, and must fit the memory on the chip.
    """
    block = BLOCK
    while 2 * block * rows <= _MOST_SCORES and 2 * block <= _MOST_SLOTS:
        block *= 2
    return block


def _cpu_block(batch: int) -> int:
    """Chooses the number of slots to copy at once on a CPU: few enough to stay in the processor's cache."""
    block = BLOCK
    while block > _LEAST_SLOTS and block * batch > _MOST_PAIRS:
        block //= 2
    return block


def scores_of(
    queries: Float[Array, "b g r t d"], keys: Float[Array, "b g s d"], scale: float
) -> Float[Array, "b g r t s"]:
    """Scores each query against each key. Heads and tokens of a group are flattened into one plain product."""
    batch, heads, group, time, width = queries.shape
    flat = queries.reshape(batch, heads, group * time, width)
    scores = jnp.einsum("bgnd,bgsd->bgns", flat, keys, preferred_element_type=jnp.float32)
    return scores.reshape(batch, heads, group, time, -1) * scale


def mix(weights: Float[Array, "b g r t s"], values: Float[Array, "b g s d"]) -> Float[Array, "b g r t d"]:
    """Sums the weighted values over slots."""
    batch, heads, group, time, slots = weights.shape
    flat = weights.reshape(batch, heads, group * time, slots).astype(values.dtype)
    mixed = jnp.einsum("bgns,bgsd->bgnd", flat, values, preferred_element_type=jnp.float32)
    return mixed.reshape(batch, heads, group, time, -1)


def within(
    query_positions: Int[Array, "b t"], key_positions: Int[Array, "#b s"], window: int | None
) -> Bool[Array, "..."]:
    """Returns whether each key is within each query's window, `[b, t, s]`, or one `True` for all."""
    if window is None:
        return jnp.ones((), jnp.bool_)
    return key_positions[:, None, :] > query_positions[:, :, None] - window


def _accumulate(
    state: Softmax,
    scores: Float[Array, "b g r t s"],
    values: Float[Array, "b g s d"],
    seen: Bool[Array, "b #t s"],
) -> Softmax:
    """Adds keys to a running softmax."""
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    maximum = jnp.maximum(state.maximum, jnp.max(scores, axis=-1))
    shrink = jnp.exp(state.maximum - maximum)
    weights = jnp.exp(scores - maximum[..., None])
    return Softmax(
        state.weighted * shrink[..., None] + mix(weights, values),
        state.weight * shrink + jnp.sum(weights, axis=-1),
        maximum,
    )
