"""Drafts what has followed the text's end most often, here and in earlier outputs: suffix decoding.

text          ... x a b c ... y a b c ... z a b d ... a b        the end "a b" occurred three times
walk          a b -> c (2 of 3) -> ...                           the most frequent token each time
probability   2/3
"""

import dataclasses
import math
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import memory, validate
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import take_row
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.lookup import Guess, LookupDrafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TextStore:
    """Holds the newest `n` texts of up to `w` tokens each; a new one takes the place of the oldest.

    Its shape never changes, so a drafter whose store has grown runs the same compiled program.

    Attributes:
      tokens: one text a row; -1 pads.
      oldest: the row that is written next.

    Example:
      >>> drafter = jaxspec.SuffixDrafter(store=jaxspec.drafters.TextStore.empty(16, 32))
      >>> result = jaxspec.generate(target, drafter, prompt, max_new_tokens=8)
      >>> drafter = jaxspec.SuffixDrafter(store=drafter.store.add(result.tokens, result.length))
      >>> drafter.store.tokens.shape, int(drafter.store.oldest)
      ((16, 32), 2)
    """

    tokens: Int[Array, "n w"]
    oldest: Int[Array, ""]

    @classmethod
    def empty(cls, texts: int, width: int) -> Self:
        """Returns a store without text.

        Raises:
          TypeError, ValueError: `texts` or `width` is no integer of at least 1.
        """
        validate.counts("TextStore", texts=texts, width=width)
        memory.check(4 * int(texts) * int(width), f"a store of {texts} texts of {width} tokens", "lower texts or width")
        return cls(jnp.full((texts, width), -1, jnp.int32), jnp.int32(0))

    def add(self, tokens: Int[Array, "b t"], length: Int[Array, "b"]) -> Self:
        """Returns the store with more texts in it, of which row `b` is `tokens[b, :length[b]]`.

        Runs inside `jax.jit` too. Of a text longer than the store is wide the end is cut off.

        Raises:
          ValueError: there are more texts than the store has rows.
        """
        rows, width = self.tokens.shape
        batch, time = tokens.shape
        if batch > rows:
            raise ValueError(f"the store holds {rows} texts, got {batch} at once; make it larger, or add them in parts")
        positions = jnp.arange(time, dtype=jnp.int32)[None]
        kept = jnp.where(positions < length[:, None], tokens.astype(jnp.int32), -1)[:, :width]
        kept = jnp.pad(kept, ((0, 0), (0, width - kept.shape[1])), constant_values=-1)
        at = (self.oldest + jnp.arange(batch, dtype=jnp.int32)) % rows
        return dataclasses.replace(self, tokens=self.tokens.at[at].set(kept), oldest=(self.oldest + batch) % rows)

    def in_a_row(self) -> Int[Array, "d"]:
        """Concatenates all texts, the newest last, with -1 after each."""
        oldest_first = jnp.roll(self.tokens, -self.oldest, axis=0)
        return jnp.pad(oldest_first, ((0, 0), (0, 1)), constant_values=-1).reshape(-1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SuffixDrafter(LookupDrafter):
    """Copies the most frequent continuation of the text's end, as far as its counts promise.

    Suffix decoding without its trees: each round looks the end up in the row's own text, and separately in the store.
    Every length of match votes with all occurrences of at least that length, and from there the most frequent token is
    followed again and again:

        cum_accept_prob of draft i    product of (occurrences that go on with the token) / (occurrences so far)
        drafts                        while cum_accept_prob >= min_probability, at most factor * match + offset
        score                         sum of cum_accept_prob: the expected number of accepted drafts

    The best score over lengths, and over text and store, is what is drafted; of equal ones the longer match, the text.
    Of equally frequent tokens the one after the longest, then latest match is followed. An occurrence that runs into
    the end of the text goes on with what is drafted, that is periodically. The search runs on the device, in a time
    that grows with text and store. One store serves all rows; it changes acceptance, and never the distribution of what
    is emitted.

    Attributes:
      k: the most drafted tokens a round. Give an `Adaptive` in its place to draft as many as pay.
      max_match: the longest end that is looked for.
      candidates: how many occurrences vote at most, in the text and in the store: the longest, then latest matches.
      factor: drafts per matched token.
      offset: drafts besides.
      min_probability: drafts whose `cum_accept_prob` is lower are not submitted.
      store: earlier outputs, or other text to copy from; `None` is the text alone.

    References:
      SuffixDecoding: Oliaro et al. (2024), arXiv:2411.04975, section 3.

    Example:
      >>> drafter = jaxspec.SuffixDrafter(k=4, max_match=8)
      >>> drafter.deterministic, drafter.max_drafts
      (True, 4)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "suffix"
    k: int | DraftLength = dataclasses.field(default=8, metadata=NUMBER_IS_STATIC)
    max_match: int = dataclasses.field(default=64, metadata={"static": True})
    candidates: int = dataclasses.field(default=32, metadata={"static": True})
    factor: float = dataclasses.field(default=1.0, metadata={"static": True})
    offset: float = dataclasses.field(default=0.0, metadata={"static": True})
    min_probability: float = dataclasses.field(default=0.1, metadata={"static": True})
    store: TextStore | None = None

    def __post_init__(self) -> None:
        validate.reads_no_log_probs("SuffixDrafter", self.draft_length)
        validate.counts("SuffixDrafter", max_match=self.max_match, candidates=self.candidates)
        bounds = {"factor": (self.factor, 0, math.inf), "offset": (self.offset, -math.inf, math.inf)}
        validate.in_range("SuffixDrafter", min_probability=(self.min_probability, 0, 1), **bounds)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of drafts that verification is compiled for: several, as a guess may have any length."""
        return tuple(sorted({*validate.draft_lengths(self.max_drafts), *self.draft_length.lengths}))

    def check(self, target: Model) -> None:
        self.draft_length.check()
        if self.store is not None and not isinstance(self.store, TextStore):
            raise TypeError(f"store must be a TextStore or None, got {type(self.store).__name__}; pass TextStore.empty")

    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        end = _end(tokens, length, min(self.max_match, tokens.shape[1]))
        best = self._follow(*_in_the_text(tokens, length, end, self.candidates, self.max_drafts))
        if self.store is None:
            return best
        other = self._follow(*_in_the_store(self.store, end, self.candidates, self.max_drafts))
        better = other.expected(other.count) > best.expected(best.count)
        return jax.tree.map(lambda a, b: jnp.where(_rows(better, a), a, b), other, best)

    def _follow(self, matched: Int[Array, "b c"], following: Int[Array, "b c k"]) -> Guess:
        """Returns the best walk, of those that begin with all occurrences of at least each candidate's length."""
        alive = (matched[:, None] >= matched[..., None]) & (matched[..., None] > 0)
        total = jnp.sum(alive, axis=2, dtype=jnp.int32)

        def another(carry, token: Int[Array, "b c"]):
            alive, total, cum_accept_prob = carry
            best, votes = _most_frequent(alive, token)
            cum_accept_prob = cum_accept_prob * votes.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)
            chosen = jnp.take_along_axis(token, best, axis=1)
            alive = alive & (token[:, None] == chosen[..., None]) & (token[:, None] >= 0)
            return (alive, votes, cum_accept_prob), (chosen, cum_accept_prob)

        start = (alive, total, jnp.ones(matched.shape, jnp.float32))
        _, (chosen, cum_accept_prob) = jax.lax.scan(another, start, jnp.moveaxis(following, 2, 0))
        chosen, cum_accept_prob = jnp.moveaxis(chosen, 0, 2), jnp.moveaxis(cum_accept_prob, 0, 2)
        most = jnp.floor(self.factor * matched.astype(jnp.float32) + self.offset)[..., None]
        submitted = (cum_accept_prob >= self.min_probability) & (cum_accept_prob > 0)
        submitted = submitted & (jnp.arange(self.max_drafts, dtype=jnp.float32)[None, None] < most)
        score = jnp.sum(jnp.where(submitted, cum_accept_prob, 0.0), axis=2)
        # The first of equal scores: the longest match, for they stand in this order.
        best = jnp.argmax(score, axis=1).astype(jnp.int32)
        count = jnp.sum(take_row(submitted, best), axis=1, dtype=jnp.int32)
        return Guess(jnp.maximum(take_row(chosen, best), 0), count, take_row(cum_accept_prob, best))


def match_lengths(text: Int[Array, "b n"], end: Int[Array, "b m"], considered: Bool[Array, "b n"]) -> Int[Array, "b n"]:
    """Counts the tokens, up to each considered position of `text`, that equal those that end with `end[b, 0]`."""

    def compare(carry):
        back, still, matched, shifted = carry
        still = still & (shifted == jax.lax.dynamic_slice_in_dim(end, back, 1, axis=1))
        shifted = jnp.pad(shifted[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        return back + 1, still, matched + still.astype(jnp.int32), shifted

    # Matches are short as a rule: the loop ends with the longest.
    going = lambda carry: (carry[0] < end.shape[1]) & jnp.any(carry[1])  # noqa: E731
    start = (jnp.int32(0), considered, jnp.zeros(text.shape, jnp.int32), text)
    return jax.lax.while_loop(going, compare, start)[2]


def _end(tokens: Int[Array, "b s"], length: Int[Array, "b"], most: int) -> Int[Array, "b m"]:
    """Returns the last tokens of each row, the last one first; -2, which no text has, before its beginning."""
    at = length[:, None] - 1 - jnp.arange(most, dtype=jnp.int32)[None]
    return jnp.where(at >= 0, jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1), -2)


def _in_the_text(tokens, length, end, candidates: int, k: int) -> tuple[Int[Array, "b c"], Int[Array, "b c k"]]:
    """Finds the longest, then latest matches in the rows' own text, and what follows each."""
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    matched, at = _longest(match_lengths(tokens, end, positions < length[:, None] - 1), candidates)
    period = jnp.maximum(length[:, None] - 1 - at, 1)[..., None]
    steps = jnp.arange(k, dtype=jnp.int32)[None, None] % period
    return matched, _take(tokens, at[..., None] + 1 + steps)


def _in_the_store(store: TextStore, end, candidates: int, k: int) -> tuple[Int[Array, "b c"], Int[Array, "b c k"]]:
    """Finds the longest, then latest matches in the store, and what follows each; -1 follows the end of a text."""
    text = store.in_a_row()
    text = jnp.broadcast_to(text[None], (end.shape[0], *text.shape))
    continue_ = jnp.pad(text[:, 1:] >= 0, ((0, 0), (0, 1)))
    matched, at = _longest(match_lengths(text, end, continue_), candidates)
    steps = 1 + jnp.arange(k, dtype=jnp.int32)[None, None]
    # Behind the last text stands a -1, where all that runs over it ends.
    return matched, _take(text, jnp.minimum(at[..., None] + steps, text.shape[1] - 1))


def _longest(matched: Int[Array, "b n"], count: int) -> tuple[Int[Array, "b c"], Int[Array, "b c"]]:
    """Returns the `count` longest matches, of equal ones the latest, and their positions."""
    last = matched.shape[1] - 1
    # Of equal values `top_k` takes those that stand first. Floats, which it is fast for, hold such numbers exactly.
    found, at = jax.lax.top_k(jnp.flip(matched, axis=1).astype(jnp.float32), min(count, last + 1))
    return found.astype(jnp.int32), last - at.astype(jnp.int32)


def _most_frequent(
    alive: Bool[Array, "b w c"], token: Int[Array, "b c"]
) -> tuple[Int[Array, "b w"], Int[Array, "b w"]]:
    """Returns the candidate with the most frequent token among those alive in each walk, the first of equals."""
    same = (token[:, :, None] == token[:, None]) & (token[:, None] >= 0)
    # Sums of zeros and ones, which every precision of a matrix unit gets right.
    votes = jnp.einsum("bwc,bcd->bwd", alive.astype(jnp.float32), same.astype(jnp.float32))
    votes = jnp.where(alive, votes, 0.0)
    return jnp.argmax(votes, axis=2).astype(jnp.int32), jnp.max(votes, axis=2).astype(jnp.int32)


def _take(text: Int[Array, "b n"], at: Int[Array, "b c k"]) -> Int[Array, "b c k"]:
    batch, candidates, k = at.shape
    return jnp.take_along_axis(text, at.reshape(batch, candidates * k), axis=1).reshape(batch, candidates, k)


def _rows(flags: Bool[Array, "b"], like: Float[Array, "..."] | Int[Array, "..."]) -> Bool[Array, "..."]:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
