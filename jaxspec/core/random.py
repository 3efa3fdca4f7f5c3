"""Derives the keys of every random draw in a round.

Every row has one key, from which two streams of draws are derived:

    token stream     fold(row, 0) -> fold(absolute position)         coupled verification, plain decoding
    round stream     fold(row, 1) -> fold(length) -> fold(purpose)   every other draw
                     -> fold(draft index, if drafts are drawn side by side) -> fold(offset)

If a prompt has several answers, the key of answer `i` is fold(row, 2) -> fold(i).

`length` is the length of the committed text when the round starts. Each active round emits a token, so no two rounds of
a row have equal lengths. The purposes are 0 for drafting (`draft_noise`), 1 for accepting (`uniforms`) and 2 for the
token after the accepted ones (`next_noise`); the offset counts drafts within the round, from 0. Both streams follow
from the row's own key and length alone, so a row's draws do not depend on its neighbors.

The round stream is **never** keyed by absolute position. Block and traversal verification accept a prefix by looking at
the drafts after its end. The next round drafts those positions again, and with the same noise it would redraw drafts
that have already been examined, which biases the output (by exact enumeration of two rounds: a total variation of 0.004
to 0.065). `RoundKeys` serves rejection, `PositionNoise` coupling, where equal noise at equal positions is the point.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from jaxspec.core import memory, native_sampling, validate
from jaxspec.core.compiler import samples_natively
from jaxspec.core.parts import argmax
from jaxspec.core.pytree import register_dataclass

_TOKEN_STREAM, _ROUND_STREAM, _ANSWERS = 0, 1, 2
_DRAFT, _ACCEPT, _NEXT = 0, 1, 2
# Drafts that are drawn side by side fold in their index before the offset; offsets stay below this.
_FIRST_DRAFT = 1 << 20


def as_threefry(key: Array) -> Key[Array, "*batch"]:
    """Converts any JAX key, typed or raw, to typed threefry keys.

    `rbg` keys give a row draws that depend on its neighbors under `vmap`, so their words are
    folded into threefry keys once, here.

    Args:
      key: typed keys of any implementation, or raw `uint32[..., 2]` (threefry) or
        `uint32[..., 4]` (rbg) key data.

    Raises:
      TypeError: `key` is neither.
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


def check_one_key(name: str, key: Any) -> None:
    """Raises `TypeError` or `ValueError` unless an argument is one JAX key, typed or raw."""
    try:
        shape = as_threefry(key).shape
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    if shape:
        raise ValueError(f"{name} must be one key, got keys of shape {shape}; pass one of them")


def row_keys(key: Array, batch: int) -> Key[Array, "b"]:
    """Returns one key per row: folded from a single key with the row's index, or as given.

    Args:
      key: one key, or `[batch]` keys; see `as_threefry`.
      batch: the number of rows.

    Raises:
      TypeError: `key` is not a PRNG key, or `batch` is not an integer.
      ValueError: there is neither one key nor one per row, or `batch` is less than 1 or too large.

    Example:
        >>> jaxspec.core.row_keys(key, batch=2).shape
        (2,)
    """
    keys = as_threefry(key)
    validate.counts("row_keys", batch=batch)
    if keys.shape == ():
        memory.check(16 * batch, f"a key for each of {batch} rows", "lower batch")
        return _fold(jnp.broadcast_to(keys, (batch,)), jnp.arange(batch, dtype=jnp.uint32))
    if keys.shape != (batch,):
        raise ValueError(f"key must be one key or one per row, got keys of shape {keys.shape} for {batch} rows")
    return keys


def answer_keys(keys: Key[Array, "b"], count: int) -> Key[Array, "b_times_count"]:
    """Returns a key for each of `count` answers of each row; a row's answers are adjacent."""
    shape = (*keys.shape, count)
    own = jnp.broadcast_to(_fold(keys, jnp.int32(_ANSWERS))[:, None], shape)
    return _fold(own, jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), shape)).reshape(-1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundKeys:
    """Draws noise for one round that no other round repeats; `Verifier.rng` returns it for verification by rejection.

    Attributes:
      keys: one threefry key per row.
      length: the number of committed tokens of each row when the round starts.
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
        """Returns the draws for one of several drafts that are drawn side by side: independent noise for each index.

        Without it, two drafts of one round would share their noise, and joint verification would be biased.
        """
        return dataclasses.replace(self, draft=(*self.draft, index))

    def draft_noise(
        self, offset: Int[Array, ""] | int, vocab_size: int, ids: Int[Array, "n"] | None = None
    ) -> Float[Array, "b n"]:
        """Draws Gumbel noise for the draft at `offset`: the draft is the argmax of noise plus log-probabilities.

        Args:
          offset: the draft's index in the round, from 0; in a tree, its depth or its node, distinct for each draw.
          vocab_size: the number of tokens.
          ids: the tokens that may be drawn, int32; `None` is all. Noise is drawn only for them, since no other draw
            reads it.

        Returns:
          `[b, vocab_size]`, or `[b, len(ids)]`, float32.
        """
        return _gumbel(_fold(self._drafts(), offset), vocab_size if ids is None else ids.shape[0])

    def draft_tokens(
        self,
        log_probs: Float[Array, "b t n"],
        offsets: Int[Array, "t"],
        vocab_size: int,
        ids: Int[Array, "n"] | None = None,
    ) -> Int[Array, "b t"]:
        """Draws the drafts at several offsets: the argmax of log-probabilities plus `draft_noise`, as indices."""
        by_xla = lambda log_probs: argmax(log_probs + drafts_noise(self, offsets, vocab_size, ids))  # noqa: E731
        if type(self) is not RoundKeys:
            return by_xla(log_probs)
        return native_sampling.choose(log_probs, _fold_offsets(self._drafts(), offsets[None]), by_xla)

    def uniforms(self, count: int) -> Float[Array, "b n"]:
        """Draws one uniform in (0, 1) for the acceptance of each of `count` drafts, `[b, count]`.

        Accept with a strict inequality, `log u < log target - log draft`: a token of target probability 0 never passes.
        """
        return _uniform(_fold_offsets(self._stream(_ACCEPT), jnp.arange(count, dtype=jnp.int32)[None]))

    def next_noise(self, vocab_size: int) -> Float[Array, "b v"]:
        """Draws Gumbel noise for the token after the accepted drafts, `[b, vocab_size]`."""
        return _gumbel(self._stream(_NEXT), vocab_size)

    def next_token(self, log_probs: Float[Array, "b v"]) -> Int[Array, "b"]:
        """Draws the token after the accepted drafts: the argmax of log-probabilities plus `next_noise`."""
        by_xla = lambda log_probs: argmax(log_probs + self.next_noise(log_probs.shape[-1]))  # noqa: E731
        keys = self.next_keys()
        return by_xla(log_probs) if keys is None else native_sampling.choose(log_probs, keys, by_xla)

    def next_keys(self) -> Key[Array, "b"] | None:
        """Returns the keys of `next_noise`; `None` in a subclass, whose noise may be another."""
        return self._stream(_NEXT) if type(self) is RoundKeys else None

    def shared(self, count: int, vocab_size: int) -> Self:
        """Returns itself: no noise is read twice, so none is stored."""
        del count, vocab_size
        return self

    def afresh(self) -> Self:
        """Returns itself: no noise is stored."""
        return self

    def _drafts(self) -> Key[Array, "b"]:
        stream = self._stream(_DRAFT)
        for index in self.draft:
            stream = _fold(stream, jnp.int32(index + _FIRST_DRAFT))
        return stream

    def _stream(self, purpose: int) -> Key[Array, "b"]:
        rounds = _fold(_fold(self.keys, jnp.int32(_ROUND_STREAM)), self.length)
        return _fold(rounds, jnp.int32(purpose))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionNoise:
    """Draws Gumbel noise by absolute position, which draft, target and plain decoding share.

    `CoupledVerifier.rng` returns it: draft and target take the argmax of their own log-probabilities plus the same
    noise, so they often agree, and the output equals that of plain decoding with the same key.

    Attributes:
      keys: one threefry key per row.
      length: the number of committed tokens of each row when the round starts.
      stored: the noise of the next `n` positions, if both drafter and verifier read it (`shared`).

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
        """Returns itself: all drafts of a position share its noise."""
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

    def draft_tokens(
        self,
        log_probs: Float[Array, "b t n"],
        offsets: Int[Array, "t"],
        vocab_size: int,
        ids: Int[Array, "n"] | None = None,
    ) -> Int[Array, "b t"]:
        """Draws the tokens at several offsets: the argmax of log-probabilities plus `draft_noise`, as indices."""
        by_xla = lambda log_probs: argmax(log_probs + drafts_noise(self, offsets, vocab_size, ids))  # noqa: E731
        return self._choose(log_probs, self.length[:, None] + offsets[None], by_xla, ids, vocab_size)

    def token_noise(self, count: int, vocab_size: int) -> Float[Array, "b n v"]:
        """Returns the noise of the next `count` positions, `[b, count, vocab_size]`."""
        if self.stored is not None:
            return self.stored[:, :count]
        return _gumbel(_fold_offsets(self._stream(), self._positions(count)), vocab_size)

    def tokens(self, log_probs: Float[Array, "b n v"]) -> Int[Array, "b n"]:
        """Draws the tokens of the next positions: the argmax of log-probabilities plus `token_noise`."""
        _, count, vocab_size = log_probs.shape
        by_xla = lambda log_probs: argmax(log_probs + self.token_noise(count, vocab_size))  # noqa: E731
        return self._choose(log_probs, self._positions(count), by_xla)

    def shared(self, count: int, vocab_size: int) -> Self:
        """Stores the noise of the next `count` positions, so that it is computed once; native kernels store none."""
        if samples_natively():
            return self
        return dataclasses.replace(self, stored=self.token_noise(count, vocab_size))

    def afresh(self) -> Self:
        """Drops the stored noise: for other devices, drawing it again is cheaper than receiving it."""
        return dataclasses.replace(self, stored=None)

    def _choose(
        self,
        log_probs: Float[Array, "b n v"],
        positions: Int[Array, "b n"],
        by_xla: Callable[[Array], Array],
        ids: Int[Array, "v"] | None = None,
        vocab_size: int | None = None,
    ) -> Int[Array, "b n"]:
        if type(self) is not PositionNoise or self.stored is not None:
            return by_xla(log_probs)
        return native_sampling.choose(log_probs, _fold_offsets(self._stream(), positions), by_xla, ids, vocab_size)

    def _positions(self, count: int) -> Int[Array, "b n"]:
        return self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]

    def _stream(self) -> Key[Array, "b"]:
        return _fold(self.keys, jnp.int32(_TOKEN_STREAM))


# The random draws of one round, which a verifier passes to the drafter and uses for its verdict.
Rng = RoundKeys | PositionNoise


def drafts_noise(
    rng: Rng, offsets: Int[Array, "t"], vocab_size: int, ids: Int[Array, "n"] | None = None
) -> Float[Array, "b t n"]:
    """Draws the noise of the drafts at several offsets; see `RoundKeys.draft_noise`."""
    if offsets.shape[0] == 1:
        return rng.draft_noise(offsets[0], vocab_size, ids)[:, None]
    return jax.vmap(lambda offset: rng.draft_noise(offset, vocab_size, ids), out_axes=1)(offsets)


def _fold(keys: Key[Array, "*b"], data: Array | int) -> Key[Array, "*b"]:
    """Folds integers into keys of any shape, elementwise."""
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
    # log1p of a uniform that has full precision near 0 keeps the upper tail, where the maximum over a large vocabulary
    # falls, from being a coarse lattice.
    return -jnp.log(-jnp.log1p(-_uniform(keys, count)))
