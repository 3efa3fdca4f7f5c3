"""Feeds committed text to a model in chunks of one shape, as many as the longest row needs."""

import dataclasses
from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Cache, Model, only
from jaxspec.core.pytree import register_dataclass

# A drafter lacks few tokens, and many processors compute a few in the time of one.
CATCH_UP_CHUNK = 16


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefilled:
    """Holds a model's pass over the prompt.

    Attributes:
      cache: holds the first `length - 1` tokens of each row.
      hidden: the captured states of those tokens, `[b, t, d]` each, in the order of `capture`; undefined beyond them.

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
    held: Int[Array, "b"] | None = None,
) -> Prefilled:
    """Feeds each row's first `length - 1` tokens: the last committed token stays unfed.

    The trip count depends on the longest row. A shorter row is fed surplus tokens, which are cut afterwards: at the
    end, or after each chunk if the cache does not rewind.

    Args:
      model: the model to feed.
      tokens: the committed text, int32; row `b` is `tokens[b, :length[b]]`.
      length: the number of committed tokens of each row, at least 1.
      cache: the model's cache, with room for `room_for(model, s)` tokens.
      capture: the hidden states to return, as in `Model.__call__`.
      held: the number of each row's tokens that the cache already holds, for models whose caches rewind; `None` is 0.
        Requires an empty `capture`.
    """
    chunks = Chunks.of(model, tokens, length - 1, capture, held)
    carry = cache, chunks.blank(cache)
    with jax.named_scope("prefill"):
        count = chunks.count
        cache, hidden = jax.lax.fori_loop(jnp.zeros((), count.dtype), count, lambda i, x: chunks.feed(i, *x), carry)
    return Prefilled(cache.truncate(chunks.goal), tuple(x[:, : tokens.shape[1]] for x in hidden))


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Cuts a text into chunks of one shape, and feeds one at a time. Not a pytree: make it where it is traced.

    Attributes:
      model: the model to feed.
      tokens: the text, padded to whole chunks if the model needs them.
      size: the number of tokens of a chunk.
      goal: the number of tokens of each row to feed.
      capture: the hidden states to store, as in `Model.__call__`.
      held: the number of each row's tokens that the cache held before; `None` is 0.

    Example:
        >>> chunks = jaxspec.core.prefill.Chunks.of(target, prompt, jnp.asarray([4, 2], jnp.int32))
        >>> chunks.size, int(chunks.count)
        (5, 1)
    """

    model: Model
    tokens: Int[Array, "b s"]
    size: int
    goal: Int[Array, "b"]
    capture: tuple[int, ...] = ()
    held: Int[Array, "b"] | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        tokens: Int[Array, "b s"],
        goal: Int[Array, "b"],
        capture: tuple[int, ...] = (),
        held: Int[Array, "b"] | None = None,
    ) -> Self:
        """Cuts the first `goal` tokens of each row."""
        padded, size = in_chunks(model, tokens)
        return cls(model, padded, size, goal, capture, held)

    @property
    def count(self) -> Int[Array, ""]:
        """The number of chunks of the longest row."""
        missing = self.goal if self.held is None else self.goal - self.held
        return (jnp.max(missing, initial=0) + self.size - 1) // self.size

    def start(self, index: Int[Array, ""]) -> Int[Array, ""]:
        """Returns the first token of a chunk, if the cache held none before.

        The last chunk moves back to end at the buffer's end: it feeds some tokens twice, which rewrites equal keys.
        Whole chunks never overlap.
        """
        return jnp.minimum(index * self.size, self.tokens.shape[1] - self.size)

    def blank(self, cache: Cache) -> tuple[Float[Array, "b s d"], ...]:
        """Returns buffers for the captured states."""
        if not self.capture:  # this saves a trace of the model
            return ()
        shapes = jax.eval_shape(lambda: self.model(self.tokens[:, :1], cache, capture=self.capture).hidden)
        return tuple(jnp.zeros((*self.tokens.shape, x.shape[-1]), x.dtype) for x in shapes)

    def feed(
        self, index: Int[Array, ""], cache: Cache, hidden: tuple[Float[Array, "b s d"], ...]
    ) -> tuple[Cache, tuple[Float[Array, "b s d"], ...]]:
        """Feeds a chunk; returns the cache, in which surplus tokens may follow the goal, and the states."""
        return self.feed_with_logits(index, cache, hidden)[:2]

    def feed_with_logits(
        self, index: Int[Array, ""], cache: Cache, hidden: tuple[Float[Array, "b s d"], ...]
    ) -> tuple[Cache, tuple[Float[Array, "b s d"], ...], Float[Array, "b t v"]]:
        """Does what `feed` does, and returns the logits too; nothing computes them where they are not used."""
        model, chunk, slots, start = self.model, self.size, self.tokens.shape[1], self.start(index)
        numbers = jnp.arange(chunk, dtype=jnp.int32)[None]
        if self.held is None:
            cache = before_chunk(model, cache, jnp.full_like(self.goal, start))
            piece, at = jax.lax.dynamic_slice_in_dim(self.tokens, start, chunk, axis=1), start[None]
        else:
            at = jnp.minimum(self.held + index * chunk, slots - chunk)
            cache = cache.truncate(at)
            piece = jnp.take_along_axis(self.tokens, at[:, None] + numbers, axis=1)
        wanted = at[:, None] + numbers < self.goal[:, None]
        output = model(only(model, wanted, piece), cache, capture=self.capture)
        hidden = tuple(
            jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis=1)
            for buffer, new in zip(hidden, output.hidden, strict=True)
        )
        cache = after_chunk(model, cache.append(output.entries), lambda: start + chunk, self.goal)
        return cache, hidden, output.logits


def room_for(model: Model, width: int) -> int:
    """Returns the cache capacity that feeding a prompt of this width needs, in whole chunks if necessary."""
    chunk, whole = _chunk(model, width)
    return width + -width % chunk if whole else width


def in_chunks(model: Model, tokens: Int[Array, "b s"]) -> tuple[Int[Array, "b s_padded"], int]:
    """Returns tokens and the chunk size; the tokens are padded to whole chunks if the model needs them."""
    width = tokens.shape[1]
    chunk, whole = _chunk(model, width)
    return jnp.pad(tokens, ((0, 0), (0, -width % chunk))) if whole else tokens, chunk


def _chunk(model: Model, width: int) -> tuple[int, bool]:
    """Returns the chunk size, and whether all chunks must be whole and adjacent.

    They must if passes agree to the bit, or if the cache does not rewind, so that no token may be fed twice.
    """
    traits = model.traits
    if traits.pass_tokens is not None:
        return traits.prompt_chunk, True
    return min(traits.prompt_chunk, width), not traits.rewinds


def before_chunk(model: Model, cache: Cache, start: Int[Array, "b"]) -> Cache:
    """Cuts a cache that rewinds to the tokens before `start`, one number for all rows."""
    return cache.truncate(start) if model.traits.rewinds else cache


def after_chunk(model: Model, cache: Cache, end: Callable[[], Int[Array, ""]], goal: Int[Array, "b"]) -> Cache:
    """Returns the cache after the tokens before `end()` were fed; if it does not rewind, surplus tokens are cut now.

    A row that already held its `goal` tokens is cut to them again.
    """
    return cache if model.traits.rewinds else cache.truncate(jnp.minimum(end(), goal))


def catch_up(model: Model, tokens: Int[Array, "b s"], cache: Cache, goal: Int[Array, "b"]) -> Cache:
    """Feeds the missing ones of each row's first `goal` tokens, and returns the cache.

    Runs no pass if every row holds them. Each row has its own window:

        row 0   holds 5, goal 7     feeds tokens 5 6 7 8    then holds 7
        row 1   holds 9, goal 7     feeds tokens 9 ...      still holds 9

    A row's surplus beyond its goal is in stale slots.
    """
    slots = tokens.shape[1]
    chunk = min(CATCH_UP_CHUNK, slots)

    def feed(_, cache):
        held = cache.length
        start = jnp.minimum(held, slots - chunk)  # as in `prefill`: some tokens may be fed twice
        window = start[:, None] + jnp.arange(chunk, dtype=jnp.int32)[None]
        cache = cache.truncate(start)
        wanted = window < jnp.maximum(held, goal)[:, None]
        output = model(only(model, wanted, jnp.take_along_axis(tokens, window, axis=1)), cache)
        cache = cache.append(output.entries)
        return cache.truncate(jnp.maximum(held, jnp.minimum(cache.length, goal)))

    missing = jnp.max(goal - cache.length, initial=0)
    with jax.named_scope("catch_up"):
        return jax.lax.fori_loop(jnp.int32(0), (missing + chunk - 1) // chunk, feed, cache)
