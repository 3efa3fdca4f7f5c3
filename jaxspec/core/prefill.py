"""Feeds committed text to a model in chunks of one shape, as many as the longest row needs."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.bit_exact import rows_of
from jaxspec.core.model import Cache, Model, chunk_of
from jaxspec.core.pytree import register_dataclass

# A drafter misses few tokens, and many processors take a few in the time of one.
CATCH_UP_CHUNK = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefilled:
    """Holds a model's pass over the prompt.

    Attributes:
      cache: holds the first `length - 1` tokens of each row.
      hidden: the captured states of those tokens, in the order of `capture`; undefined beyond them.

    Example:
        >>> prefilled = jaxspec.core.Prefilled(target.init_cache(batch=2, capacity=8), hidden=())
        >>> prefilled.cache.length.tolist()
        [0, 0]
    """

    cache: Cache
    hidden: tuple[Float[Array, "b t d"], ...]


def prefill(
    model: Model,
    tokens: Int[Array, "b s"],
    length: Int[Array, "b"],
    cache: Cache,
    capture: tuple[int, ...] = (),
) -> Prefilled:
    """Feeds each row's first `length - 1` tokens: the last committed token stays unfed.

    The trip count follows the longest row; a shorter row's surplus is fed too and then
    forgotten by truncation.

    Args:
      model: the model to feed.
      tokens: committed text; row `b` is `tokens[b, :length[b]]`.
      length: committed tokens of each row, at least 1.
      cache: an empty cache of the model, with room for `room_for(model, s)` tokens.
      capture: the hidden states to return, as of `Model.__call__`.
    """
    width = tokens.shape[1]
    tokens, chunk = in_chunks(model, tokens)
    slots = tokens.shape[1]
    fed = length - 1

    def feed(index, carry):
        cache, hidden = carry
        # The last chunk is moved back to end at the buffer's end: it then feeds some tokens
        # twice, which writes the same keys again.
        start = jnp.minimum(index * chunk, slots - chunk)
        cache = cache.truncate(jnp.full_like(fed, start))
        piece = jax.lax.dynamic_slice_in_dim(tokens, start, chunk, axis=1)
        output = model(piece, cache, capture=capture)
        hidden = tuple(
            jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis=1)
            for buffer, new in zip(hidden, output.hidden, strict=True)
        )
        return cache.append(output.entries), hidden

    chunks = (jnp.max(fed) + chunk - 1) // chunk
    hidden = _hidden_buffers(model, tokens, cache, capture)
    with jax.named_scope("prefill"):
        cache, hidden = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed, (cache, hidden))
    return Prefilled(cache.truncate(fed), tuple(x[:, :width] for x in hidden))


def room_for(model: Model, width: int) -> int:
    """Returns how many tokens a cache must hold while such a prompt is fed: whole pieces, if they are fixed."""
    return width if rows_of(model) is None else width + -width % chunk_of(model)


def in_chunks(model: Model, tokens: Int[Array, "b s"]) -> tuple[Int[Array, "b s_padded"], int]:
    """Returns tokens and how many of them a pass takes: of one number, where passes must agree to the bit."""
    chunk = chunk_of(model)
    if rows_of(model) is None:
        return tokens, min(chunk, tokens.shape[1])
    return jnp.pad(tokens, ((0, 0), (0, -tokens.shape[1] % chunk))), chunk


def catch_up(model: Model, tokens: Int[Array, "b s"], cache: Cache, goal: Int[Array, "b"]) -> Cache:
    """Feeds what a cache lacks of the first `goal` tokens of each row, and returns it.

    Runs no pass where every row holds them. Each row has its own window:

        row 0   holds 5, goal 7     feeds tokens 5 6 7 8    then holds 7
        row 1   holds 9, goal 7     feeds tokens 9 ...      still holds 9

    The surplus of a row beyond its goal lies in stale slots.
    """
    slots = tokens.shape[1]
    chunk = min(CATCH_UP_CHUNK, slots)

    def feed(_, cache):
        held = cache.length
        start = jnp.minimum(held, slots - chunk)  # as in `prefill`: some tokens may be fed twice
        window = start[:, None] + jnp.arange(chunk, dtype=jnp.int32)[None]
        cache = cache.truncate(start)
        output = model(jnp.take_along_axis(tokens, window, axis=1), cache)
        cache = cache.append(output.entries)
        return cache.truncate(jnp.maximum(held, jnp.minimum(cache.length, goal)))

    missing = jnp.max(goal - cache.length, initial=0)
    with jax.named_scope("catch_up"):
        return jax.lax.fori_loop(jnp.int32(0), (missing + chunk - 1) // chunk, feed, cache)


def _hidden_buffers(
    model: Model, tokens: Int[Array, "b s"], cache: Cache, capture: tuple[int, ...]
) -> tuple[Float[Array, "b s d"], ...]:
    shapes = jax.eval_shape(lambda: model(tokens[:, :1], cache, capture=capture).hidden)
    return tuple(jnp.zeros((*tokens.shape, x.shape[-1]), x.dtype) for x in shapes)
