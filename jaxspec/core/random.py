"""Which random number is drawn with which key.

Every row has one key. From it come two kinds of draws:

    token stream     fold(row, 0) -> fold(absolute position)         coupled verification
    round stream     fold(row, 1) -> fold(length) -> fold(purpose)   every other draw
                     -> fold(offset)

Both hang on the row's own key and length alone, so a row's draws do not know its neighbours.
The round stream is **never** keyed by absolute position: a verifier that conditions on drafts
behind the cut would then reuse a draw that it has already looked at, which biases the distribution.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core.pytree import register_dataclass

_TOKEN_STREAM, _ROUND_STREAM = 0, 1
_DRAFT, _ACCEPT, _NEXT = 0, 1, 2
# Drafts side by side fold their index in before the offset; offsets stay below this.
_FIRST_DRAFT = 1 << 20


def as_threefry(key: Array) -> Key[Array, "*batch"]:
    """Any JAX key, typed or raw, as typed threefry keys.

    `rbg` keys give a row draws that depend on its neighbours under `vmap`, so their words are
    folded into threefry keys once, here.

    Args:
      key: typed keys of any implementation, or raw `uint32[..., 2]` (threefry) or
        `uint32[..., 4]` (rbg) key data.

    Raises:
      TypeError: if `key` is neither.
    """
    if not hasattr(key, "dtype"):
        raise TypeError(f"key must be a JAX PRNG key, got {type(key).__name__}; pass jax.random.key(seed)")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    if key.dtype != jnp.uint32 or key.ndim == 0 or key.shape[-1] not in (2, 4):
        raise TypeError(
            f"key must be a JAX PRNG key, got an array of dtype {key.dtype} and shape {key.shape}; "
            "pass jax.random.key(seed)"
        )
    threefry = jax.random.wrap_key_data(key[..., :2], impl="threefry2x32")
    for word in range(2, key.shape[-1]):
        threefry = _fold(threefry, key[..., word])
    return threefry


def row_keys(key: Array, batch: int) -> Key[Array, "b"]:
    """One key a row: folded from a single key with the row's index, or taken as given.

    Raises:
      TypeError: if `key` is not a PRNG key.
      ValueError: if there is neither one key nor one a row.
    """
    keys = as_threefry(key)
    if keys.shape == ():
        return _fold(jnp.broadcast_to(keys, (batch,)), jnp.arange(batch, dtype=jnp.uint32))
    if keys.shape != (batch,):
        raise ValueError(f"key must be one key or one a row, got keys of shape {keys.shape} for {batch} rows")
    return keys


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundKeys:
    """Draws for one round that no other round repeats: each live round moves `length`."""

    keys: Key[Array, "b"]
    length: Int[Array, "b"]
    draft: tuple[Int[Array, ""] | int, ...] = ()

    def of_draft(self, index: Int[Array, ""] | int) -> Self:
        """The draws of one of several drafts that are drawn side by side: its own noise."""
        return dataclasses.replace(self, draft=(*self.draft, index))

    def draft_noise(
        self, offset: Int[Array, ""], vocab_size: int, ids: Int[Array, "n"] | None = None
    ) -> Float[Array, "b n"]:
        """Gumbel noise to draw the drafted token at `offset` with.

        Args:
          offset: which of the drafts.
          vocab_size: how many tokens there are.
          ids: those that may be drawn; `None` is all. No other draw knows this noise, so it is drawn for them alone.
        """
        stream = self._stream(_DRAFT)
        for index in self.draft:
            stream = _fold(stream, jnp.int32(index + _FIRST_DRAFT))
        return _gumbel(_fold(stream, offset), vocab_size if ids is None else ids.shape[0])

    def uniforms(self, count: int) -> Float[Array, "b n"]:
        """One uniform in (0, 1) for each drafted token's acceptance."""
        return _uniform(_fold_offsets(self._stream(_ACCEPT), jnp.arange(count, dtype=jnp.int32)[None]))

    def next_noise(self, vocab_size: int) -> Float[Array, "b v"]:
        """Gumbel noise to draw the token that follows the accepted ones with."""
        return _gumbel(self._stream(_NEXT), vocab_size)

    def shared(self, count: int, vocab_size: int) -> Self:
        """Nothing here is drawn twice, so there is nothing to keep."""
        del count, vocab_size
        return self

    def afresh(self) -> Self:
        """Nothing is kept."""
        return self

    def _stream(self, purpose: int):
        rounds = _fold(_fold(self.keys, jnp.int32(_ROUND_STREAM)), self.length)
        return _fold(rounds, jnp.int32(purpose))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionNoise:
    """The Gumbel stream that draft, target and plain decoding share, by absolute position.

    `kept` holds the noise of the first positions where both a drafter and the verifier read it.
    """

    keys: Key[Array, "b"]
    length: Int[Array, "b"]
    kept: Float[Array, "b n v"] | None = None

    def of_draft(self, index: Int[Array, ""] | int) -> Self:
        """The same draws: every draft of a position is drawn with the position's noise."""
        del index
        return self

    def draft_noise(
        self, offset: Int[Array, ""], vocab_size: int, ids: Int[Array, "n"] | None = None
    ) -> Float[Array, "b n"]:
        """The noise of the position `offset` tokens after the last committed one, or that of some tokens there."""
        if self.kept is not None:
            noise = jax.lax.dynamic_index_in_dim(self.kept, offset, axis=1, keepdims=False)
        else:
            noise = _gumbel(_fold(self._stream(), self.length + offset), vocab_size)
        return noise if ids is None else noise[:, ids]

    def token_noise(self, count: int, vocab_size: int) -> Float[Array, "b n v"]:
        """The noise of the next `count` positions."""
        if self.kept is not None:
            return self.kept[:, :count]
        positions = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        return _gumbel(_fold_offsets(self._stream(), positions), vocab_size)

    def shared(self, count: int, vocab_size: int) -> Self:
        """The same draws with the noise of `count` positions computed once."""
        return dataclasses.replace(self, kept=self.token_noise(count, vocab_size))

    def afresh(self) -> Self:
        """The same draws without what was kept: other devices draw again for less than it costs to send it."""
        return dataclasses.replace(self, kept=None)

    def _stream(self):
        return _fold(self.keys, jnp.int32(_TOKEN_STREAM))


# What a verifier hands out for a round: to the drafter for its drafts, and to itself for its verdict.
Rng = RoundKeys | PositionNoise


def _fold(keys, data: Array):
    """Folds integers into keys, elementwise over whatever shape the keys have."""
    fold = jax.random.fold_in
    for _ in keys.shape:
        fold = jax.vmap(fold)
    return fold(keys, jnp.broadcast_to(data, keys.shape))


def _fold_offsets(keys, offsets: Int[Array, "*b n"]):
    """Keys `[b]` and offsets `[b, n]` or `[n]` to keys `[b, n]`."""
    shape = (*keys.shape, offsets.shape[-1])
    return _fold(jnp.broadcast_to(keys[..., None], shape), offsets)


def _uniform(keys, count: int | None = None):
    """Uniforms in (0, 1): 32 random bits, so that small values keep full relative precision."""
    shape = () if count is None else (count,)
    draw = lambda key: jax.random.bits(key, shape, jnp.uint32)  # noqa: E731
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return jnp.minimum((draw(keys).astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)


def _gumbel(keys, count: int):
    # Written with log1p of a uniform that is fine near 0, so that the upper tail, where the
    # maximum over a large vocabulary falls, is not a coarse lattice.
    return -jnp.log(-jnp.log1p(-_uniform(keys, count)))
