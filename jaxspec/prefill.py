"""Feeding the prompt, in chunks of one shape and as many as the longest row needs."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.cache import Cache
from jaxspec.model import Model

CHUNK = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefilled:
    """A model's pass over the prompt: its cache, and the hidden states that were asked for.

    `hidden[i]` is `[b, t, d]` over the first `length - 1` tokens of each row; what lies beyond
    is undefined.
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
    """
    slots = tokens.shape[1]
    chunk = min(CHUNK, slots)
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
    cache, hidden = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed, (cache, hidden))
    return Prefilled(cache.truncate(fed), hidden)


def _hidden_buffers(model, tokens, cache, capture):
    shapes = jax.eval_shape(lambda: model(tokens[:, :1], cache, capture=capture).hidden)
    return tuple(jnp.zeros((*tokens.shape, x.shape[-1]), x.dtype) for x in shapes)
