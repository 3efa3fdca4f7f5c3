"""Drafts the most frequent continuation of the text's end, in the text and in earlier outputs: suffix decoding.

text          ... x a b c ... y a b c ... z a b d ... a b        the end "a b" occurred three times
walk          a b -> c (2 of 3) -> ...                           the most frequent token each time
probability   2/3
"""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import memory, validate
from jaxspec.core.leading import take_row
from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import check_fields
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.lookup import Guess, LookupDrafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TextStore:
    """Holds the newest `n` texts of up to `w` tokens each; a new text replaces the oldest.

    Its shape never changes, so a drafter runs the same compiled program as its store grows.

    Attributes:
      tokens: one text a row, padded with -1.
      oldest: the row to write next.

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
        """Returns an empty store.

        Args:
          texts: the number of texts.
          width: the number of tokens kept of each.

        Raises:
          TypeError, ValueError: `texts` or `width` is not a positive integer.
        """
        validate.counts("TextStore", texts=texts, width=width)
        memory.check(4 * int(texts) * int(width), f"a store of {texts} texts of {width} tokens", "lower texts or width")
        return cls(jnp.full((texts, width), -1, jnp.int32), jnp.int32(0))

    def add(self, tokens: Int[Array, "b t"], length: Int[Array, "b"]) -> Self:
        """Returns the store with texts added, where text `b` is `tokens[b, :length[b]]`.

        Works under `jax.jit` too. A text longer than `w` is truncated at its end.

        Args:
          tokens: the texts, padded on the right.
          length: the number of tokens of each.

        Raises:
          TypeError, ValueError: these are not integers of those shapes, or there are more texts than rows in the store.
        """
        rows, width = self.tokens.shape
        tokens = jnp.asarray(validate.numbers("tokens", tokens, "token ids, [b, t]", whole=True))
        length = jnp.asarray(validate.numbers("length", length, "a number for each text", whole=True))
        if tokens.ndim != 2 or length.shape != tokens.shape[:1]:
            raise ValueError(f"expected tokens [b, t] and a length for each, got {tokens.shape} and {length.shape}")
        batch, time = tokens.shape
        if batch > rows:
            raise ValueError(f"the store holds {rows} texts, got {batch} at once; make it larger, or add them in parts")
        positions = jnp.arange(time, dtype=jnp.int32)[None]
        kept = jnp.where(positions < length[:, None], tokens.astype(jnp.int32), -1)[:, :width]
        kept = jnp.pad(kept, ((0, 0), (0, width - kept.shape[1])), constant_values=-1)
        at = (self.oldest + jnp.arange(batch, dtype=jnp.int32)) % rows
        return dataclasses.replace(self, tokens=self.tokens.at[at].set(kept), oldest=(self.oldest + batch) % rows)

    def in_a_row(self) -> Int[Array, "d"]:
        """Concatenates all texts, oldest first, with -1 after each."""
        oldest_first = jnp.roll(self.tokens, -self.oldest, axis=0)
        return jnp.pad(oldest_first, ((0, 0), (0, 1)), constant_values=-1).reshape(-1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SuffixDrafter(LookupDrafter):
    """Copies the most frequent continuation of the text's end, for as long as its counts promise acceptance.

    Suffix decoding without its trees: each round looks the end up in the row's own text, and separately in the store.
    For each match length, all occurrences of at least that length vote, and the most frequent next token is followed,
    step by step:

        cum_accept_prob of draft i    product of (occurrences that continue with the token) / (occurrences so far)
        drafts                        while cum_accept_prob >= min_probability, at most factor * match + offset
        score                         sum of cum_accept_prob: the expected number of accepted drafts

    The continuation with the best score is drafted, over all match lengths, text and store; ties go to the longer
    match, then to the text. Among equally frequent tokens, the one after the longest, then latest match is followed. An
    occurrence that reaches the end of the text continues with the drafts themselves, that is, periodically. The search
    runs on the device, in time proportional to text and store. All rows share one store; it changes acceptance, but
    never the distribution of the output.

    Attributes:
      k: the largest number of drafts a round. Pass an `Adaptive` to choose it round by round.
      max_match: the longest match to look for.
      candidates: the most occurrences that vote, for the text and for the store: the longest, then latest matches.
      factor: drafts per matched token.
      offset: drafts in addition to those.
      min_probability: drafts with a lower `cum_accept_prob` are not submitted.
      store: earlier outputs, or other text to copy from; `None` uses the row's text alone.

    References:
      SuffixDecoding: Oliaro et al. (2024), arXiv:2411.04975, section 3.

    Example:
      >>> drafter = jaxspec.SuffixDrafter(k=4, max_match=8)
      >>> drafter.deterministic, drafter.max_drafts
      (True, 4)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

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
        """The numbers of drafts that verification is compiled for: several, as guesses vary in length."""
        return tuple(sorted({*validate.draft_lengths(self.max_drafts), *self.draft_length.lengths}))

    def check(self, target: Model) -> None:
        self.draft_length.check()
        if self.store is not None and not isinstance(self.store, TextStore):
            raise TypeError(f"store must be a TextStore or None, got {type(self.store).__name__}; pass TextStore.empty")
        if self.store is not None:
            check_fields(self.store)

    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        end = _end(tokens, length, min(self.max_match, tokens.shape[1]))
        best = self._follow(*_in_the_text(tokens, length, end, self.candidates, self.max_drafts))
        if self.store is None:
            return best
        other = self._follow(*_in_the_store(self.store, end, self.candidates, self.max_drafts))
        better = other.expected(other.count) > best.expected(best.count)
        return jax.tree.map(lambda a, b: jnp.where(_rows(better, a), a, b), other, best)

    def _follow(self, matched: Int[Array, "b c"], following: Int[Array, "b c k"]) -> Guess:
        """Returns the best continuation; each candidate starts from all matches at least as long."""
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
        # Ties go to the first, which is the longest match, as candidates are sorted by length.
        best = jnp.argmax(score, axis=1).astype(jnp.int32)
        count = jnp.sum(take_row(submitted, best), axis=1, dtype=jnp.int32)
        return Guess(jnp.maximum(take_row(chosen, best), 0), count, take_row(cum_accept_prob, best))


# Tokens compared in one pass over the text: a pass writes its results once.
_STEPS = 8


def match_lengths(text: Int[Array, "b n"], end: Int[Array, "b m"], considered: Bool[Array, "b n"]) -> Int[Array, "b n"]:
    """Counts how many tokens up to each considered position of `text` match `end`, which is in reverse order."""

    width, steps = text.shape[1], min(_STEPS, end.shape[1])
    end = jnp.pad(end, ((0, 0), (0, -end.shape[1] % steps)), constant_values=-2)
    most = end.shape[1]
    padded = jnp.pad(text, ((0, 0), (most, 0)), constant_values=-1)

    def compare(carry):
        back, still, matched = carry
        for step in range(steps):
            earlier = jax.lax.dynamic_slice_in_dim(padded, most - back - step, width, axis=1)
            still = still & (earlier == jax.lax.dynamic_slice_in_dim(end, back + step, 1, axis=1))
            matched = matched + still.astype(jnp.int32)
        return back + steps, still, matched

    # Matches are usually short, and the loop ends with the longest.
    unfinished = lambda carry: (carry[0] < most) & jnp.any(carry[1])  # noqa: E731
    start = (jnp.int32(0), considered, jnp.zeros(text.shape, jnp.int32))
    return jax.lax.while_loop(unfinished, compare, start)[2]


def _end(tokens: Int[Array, "b s"], length: Int[Array, "b"], most: int) -> Int[Array, "b m"]:
    """Returns the last tokens of each row in reverse order, padded with -2, which occurs in no text."""
    at = length[:, None] - 1 - jnp.arange(most, dtype=jnp.int32)[None]
    return jnp.where(at >= 0, jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1), -2)


def _in_the_text(tokens, length, end, candidates: int, k: int) -> tuple[Int[Array, "b c"], Int[Array, "b c k"]]:
    """Finds the longest, then latest matches in the rows' own text, and the tokens that follow each."""
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    matched, at = _longest(match_lengths(tokens, end, positions < length[:, None] - 1), candidates)
    period = jnp.maximum(length[:, None] - 1 - at, 1)[..., None]
    steps = jnp.arange(k, dtype=jnp.int32)[None, None] % period
    return matched, _take(tokens, at[..., None] + 1 + steps)


def _in_the_store(store: TextStore, end, candidates: int, k: int) -> tuple[Int[Array, "b c"], Int[Array, "b c k"]]:
    """Finds the longest, then latest matches in the store, and the tokens that follow each; -1 ends a text."""
    text = store.in_a_row()
    text = jnp.broadcast_to(text[None], (end.shape[0], *text.shape))
    continue_ = jnp.pad(text[:, 1:] >= 0, ((0, 0), (0, 1)))
    matched, at = _longest(match_lengths(text, end, continue_), candidates)
    steps = 1 + jnp.arange(k, dtype=jnp.int32)[None, None]
    # The last text is followed by -1, and reads past it are clamped there.
    return matched, _take(text, jnp.minimum(at[..., None] + steps, text.shape[1] - 1))


def _longest(matched: Int[Array, "b n"], count: int) -> tuple[Int[Array, "b c"], Int[Array, "b c"]]:
    """Returns the `count` longest matches and their positions; ties go to the latest."""
    last = matched.shape[1] - 1
    # `top_k` breaks ties in favor of the first. It is fast for floats, which hold these integers exactly.
    found, at = jax.lax.top_k(jnp.flip(matched, axis=1).astype(jnp.float32), min(count, last + 1))
    return found.astype(jnp.int32), last - at.astype(jnp.int32)


def _most_frequent(
    alive: Bool[Array, "b w c"], token: Int[Array, "b c"]
) -> tuple[Int[Array, "b w"], Int[Array, "b w"]]:
    """Returns the candidate with the most frequent token among those alive in each walk, and its votes."""
    same = (token[:, :, None] == token[:, None]) & (token[:, None] >= 0)
    # Sums of zeros and ones are exact at every matrix unit's precision.
    votes = jnp.einsum("bwc,bcd->bwd", alive.astype(jnp.float32), same.astype(jnp.float32))
    votes = jnp.where(alive, votes, 0.0)
    return jnp.argmax(votes, axis=2).astype(jnp.int32), jnp.max(votes, axis=2).astype(jnp.int32)


def _take(text: Int[Array, "b n"], at: Int[Array, "b c k"]) -> Int[Array, "b c k"]:
    batch, candidates, k = at.shape
    return jnp.take_along_axis(text, at.reshape(batch, candidates * k), axis=1).reshape(batch, candidates, k)


def _rows(flags: Bool[Array, "b"], like: Float[Array, "..."] | Int[Array, "..."]) -> Bool[Array, "..."]:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
