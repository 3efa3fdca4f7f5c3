"""Derives the keys of every random draw in a round.

Every row has one key. From it come two streams of draws:

    token stream     fold(row, 0) -> fold(absolute position)         coupled verification, plain decoding
    round stream     fold(row, 1) -> fold(length) -> fold(purpose)   every other draw
                     -> fold(draft index, if drafts are drawn side by side) -> fold(offset)

Where a prompt has several answers, the key of answer `i` is fold(row, 2) -> fold(i).

`length` is that of the committed text when the round starts; each live round emits a token, so that no two rounds of a
row have the same. The purposes are 0 for drafting (`draft_noise`), 1 for accepting (`uniforms`) and 2 for the token
after the accepted ones (`next_noise`); the offset counts drafts within the round, from 0. Both streams follow from the
row's own key and length alone, so a row's draws do not depend on its neighbors.

The round stream is **never** keyed by absolute position. Block and traversal verification accept a prefix by looking at
the drafts behind its end; the next round drafts those positions again, and with the same noise it would redraw what
has been looked at already, which biases the output (by exact enumeration of two rounds: a total variation of 0.004 to
0.065). `RoundKeys` serves rejection, `PositionNoise` coupling, where equal noise at equal positions is the point.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core.pytree import register_dataclass

_TOKEN_STREAM, _ROUND_STREAM, _ANSWERS = 0, 1, 2
_DRAFT, _ACCEPT, _NEXT = 0, 1, 2
# Drafts side by side fold their index in before the offset; offsets stay below this.
_FIRST_DRAFT = 1 << 20


def as_threefry(key: Array) -> Key[Array, "*batch"]:
    """Returns any JAX key, typed or raw, as typed threefry keys.

    `rbg` keys give a row draws that depend on its neighbors under `vmap`, so their words are
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
    """Returns one key a row: folded from a single key with the row's index, or taken as given.

    Args:
      key: one key, or `[batch]` of them; see `as_threefry`.
      batch: the number of rows.

    Raises:
      TypeError: if `key` is not a PRNG key.
      ValueError: if there is neither one key nor one a row.

    Example:
        >>> jaxspec.core.row_keys(key, batch=2).shape
        (2,)
    """
    keys = as_threefry(key)
    if keys.shape == ():
        return _fold(jnp.broadcast_to(keys, (batch,)), jnp.arange(batch, dtype=jnp.uint32))
    if keys.shape != (batch,):
        raise ValueError(f"key must be one key or one a row, got keys of shape {keys.shape} for {batch} rows")
    return keys


def answer_keys(keys: Key[Array, "b"], count: int) -> Key[Array, "b_times_count"]:
    """Returns a key for each of `count` answers of each row, those of one row next to each other."""
    shape = (*keys.shape, count)
    own = jnp.broadcast_to(_fold(keys, jnp.int32(_ANSWERS))[:, None], shape)
    return _fold(own, jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), shape)).reshape(-1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundKeys:
    """Draws for one round that no other round repeats: what `Verifier.rng` returns for verification by rejection.

    Attributes:
      keys: one threefry key a row.
      length: the committed tokens of each row when the round starts.
      draft: the indices folded in by `of_draft`.

    Example:
        >>> keys = jaxspec.core.row_keys(key, batch=2)
        >>> rng = jaxspec.core.RoundKeys(keys, length=jnp.asarray([5, 4], jnp.int32))
        >>> rng.draft_noise(0, vocab_size=310).shape, rng.uniforms(4).shape
        ((2, 310), (2, 4))
        >>> bool((rng.draft_noise(0, 310) == rng.of_draft(1).draft_noise(0, 310)).any())
        False
    """

    keys: Key[Array, "b"]
    length: Int[Array, "b"]
    draft: tuple[Int[Array, ""] | int, ...] = ()

    def of_draft(self, index: Int[Array, ""] | int) -> Self:
        """Returns the draws of one of several drafts that are drawn side by side: independent noise for each index.

        Without it two drafts of one round would be drawn with the same noise, and joint verification would be biased.
        """
        return dataclasses.replace(self, draft=(*self.draft, index))

    def draft_noise(
        self, offset: Int[Array, ""] | int, vocab_size: int, ids: Int[Array, "n"] | None = None
    ) -> Float[Array, "b n"]:
        """Draws Gumbel noise for the draft at `offset`: the draft is the argmax of noise plus log-probabilities.

        Args:
          offset: the draft's place in the round, from 0; of a tree, its depth or its node, as long as each draw has
            its own.
          vocab_size: the number of tokens.
          ids: those that may be drawn; `None` is all. No other draw reads this noise, so it is drawn for them alone.

        Returns:
          `[b, vocab_size]`, or `[b, len(ids)]`, float32.
        """
        stream = self._stream(_DRAFT)
        for index in self.draft:
            stream = _fold(stream, jnp.int32(index + _FIRST_DRAFT))
        return _gumbel(_fold(stream, offset), vocab_size if ids is None else ids.shape[0])

    def uniforms(self, count: int) -> Float[Array, "b n"]:
        """Draws one uniform in (0, 1) for the acceptance of each of `count` drafts, `[b, count]`.

        Accept with a strict inequality, `log u < log target - log draft`: a token of target probability 0 never is.
        """
        return _uniform(_fold_offsets(self._stream(_ACCEPT), jnp.arange(count, dtype=jnp.int32)[None]))

    def next_noise(self, vocab_size: int) -> Float[Array, "b v"]:
        """Draws Gumbel noise for the token that follows the accepted ones, `[b, vocab_size]`."""
        return _gumbel(self._stream(_NEXT), vocab_size)

    def shared(self, count: int, vocab_size: int) -> Self:
        """Returns itself: no noise is read twice, so none is stored."""
        del count, vocab_size
        return self

    def afresh(self) -> Self:
        """Returns itself: no noise is stored."""
        return self

    def _stream(self, purpose: int) -> Key[Array, "b"]:
        rounds = _fold(_fold(self.keys, jnp.int32(_ROUND_STREAM)), self.length)
        return _fold(rounds, jnp.int32(purpose))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionNoise:
    """Draws the Gumbel noise that draft, target and plain decoding share, by absolute position.

    `CoupledVerifier.rng` returns it: draft and target take the argmax of their own log-probabilities plus the same
    noise, so they often agree, and the output is that of plain decoding with the same key.

    Attributes:
      keys: one threefry key a row.
      length: the committed tokens of each row when the round starts.
      stored: the noise of the next `n` positions, where both a drafter and the verifier read it (`shared`).

    Example:
        >>> keys = jaxspec.core.row_keys(key, batch=2)
        >>> rng = jaxspec.core.PositionNoise(keys, length=jnp.asarray([5, 4], jnp.int32))
        >>> later = jaxspec.core.PositionNoise(keys, length=jnp.asarray([6, 5], jnp.int32))
        >>> bool((rng.draft_noise(1, 310) == later.draft_noise(0, 310)).all())
        True
    """

    keys: Key[Array, "b"]
    length: Int[Array, "b"]
    stored: Float[Array, "b n v"] | None = None

    def of_draft(self, index: Int[Array, ""] | int) -> Self:
        """Returns itself: every draft of a position is drawn with the position's noise."""
        del index
        return self

    def draft_noise(
        self, offset: Int[Array, ""] | int, vocab_size: int, ids: Int[Array, "n"] | None = None
    ) -> Float[Array, "b n"]:
        """Returns the noise of the position `offset` tokens after the last committed one.

        Args:
          offset: the draft's depth in the round, from 0.
          vocab_size: the number of tokens.
          ids: the tokens whose noise is returned; `None` is all.

        Returns:
          `[b, vocab_size]`, or `[b, len(ids)]`, float32.
        """
        if self.stored is not None:
            noise = jax.lax.dynamic_index_in_dim(self.stored, offset, axis=1, keepdims=False)
        else:
            noise = _gumbel(_fold(self._stream(), self.length + offset), vocab_size)
        return noise if ids is None else noise[:, ids]

    def token_noise(self, count: int, vocab_size: int) -> Float[Array, "b n v"]:
        """Returns the noise of the next `count` positions, `[b, count, vocab_size]`."""
        if self.stored is not None:
            return self.stored[:, :count]
        positions = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        return _gumbel(_fold_offsets(self._stream(), positions), vocab_size)

    def shared(self, count: int, vocab_size: int) -> Self:
        """Returns the same keys with the noise of the next `count` positions computed once."""
        return dataclasses.replace(self, stored=self.token_noise(count, vocab_size))

    def afresh(self) -> Self:
        """Returns the same keys without stored noise: other devices draw it again for less than it costs to send."""
        return dataclasses.replace(self, stored=None)

    def _stream(self) -> Key[Array, "b"]:
        return _fold(self.keys, jnp.int32(_TOKEN_STREAM))


# The draws that a verifier hands out for one round: to the drafter for its drafts, and to itself for its verdict.
Rng = RoundKeys | PositionNoise


def _fold(keys: Key[Array, "*b"], data: Array | int) -> Key[Array, "*b"]:
    """Folds integers into keys, elementwise over whatever shape the keys have."""
    fold = jax.random.fold_in
    for _ in keys.shape:
        fold = jax.vmap(fold)
    return fold(keys, jnp.broadcast_to(data, keys.shape))


def _fold_offsets(keys: Key[Array, "b"], offsets: Int[Array, "_ n"]) -> Key[Array, "b n"]:
    """Folds offsets `[b, n]` or `[1, n]` into keys `[b]`: keys `[b, n]`."""
    shape = (*keys.shape, offsets.shape[-1])
    return _fold(jnp.broadcast_to(keys[..., None], shape), offsets)


def _uniform(keys: Key[Array, "*b"], count: int | None = None) -> Float[Array, "..."]:
    """Draws uniforms in (0, 1) from 32 random bits, so that small values keep full relative precision."""
    shape = () if count is None else (count,)
    draw = lambda key: jax.random.bits(key, shape, jnp.uint32)  # noqa: E731
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return jnp.minimum((draw(keys).astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)


def _gumbel(keys: Key[Array, "*b"], count: int) -> Float[Array, "*b n"]:
    # Written with log1p of a uniform that is fine near 0, so that the upper tail, where the
    # maximum over a large vocabulary falls, is not a coarse lattice.
    return -jnp.log(-jnp.log1p(-_uniform(keys, count)))
