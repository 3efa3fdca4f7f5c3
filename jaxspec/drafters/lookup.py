"""Copies drafts from existing text: each draft is a function of the text, and nothing is sampled."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import processing
from jaxspec.core.leading import count_leading
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength, as_draft_length
from jaxspec.draft_length.costs import PASS, DraftCosts
from jaxspec.drafters.base import AdjustableDrafter, DrafterInfo


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Guess:
    """Holds a guess of the tokens that follow each row's text, with the drafter's confidence in it.

    Attributes:
      tokens: the guessed tokens.
      count: how many of the leading tokens are part of the guess.
      cum_accept_prob: the drafter's estimate of the probability that draft `i` and all before it are accepted.
        Decreasing; meaningless beyond `count`.

    Example:
      >>> tokens, chances = jnp.asarray([[5, 6, 7]], jnp.int32), jnp.asarray([[0.5, 0.25, 0.125]])
      >>> guess = jaxspec.drafters.Guess(tokens, jnp.asarray([2], jnp.int32), chances)
      >>> guess.expected(jnp.asarray([3], jnp.int32)).tolist()  # of the two tokens of the guess
      [0.75]
    """

    tokens: Int[Array, "b k"]
    count: Int[Array, "b"]
    cum_accept_prob: Float[Array, "b k"]

    def expected(self, most: Int[Array, "b"]) -> Float[Array, "b"]:
        """Returns the expected number of accepted tokens among the first `most` drafts of each row."""
        meant = self.places < jnp.minimum(self.count, most)[:, None]
        return jnp.sum(jnp.where(meant, self.cum_accept_prob, 0.0), axis=1)

    def cut(self, longest: Int[Array, "b"]) -> "Guess":
        """Returns the guess truncated to at most `longest` drafts a row."""
        return dataclasses.replace(self, count=jnp.minimum(self.count, longest))

    @property
    def places(self) -> Int[Array, "1 k"]:
        """The index of each draft in its row."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LookupState:
    """Holds the state of a drafter that copies.

    Attributes:
      length_state: the draft length's state.
      guess: the last round's guess, of which `count` drafts were submitted.
      certain: how many leading drafts were forced by the target's policy; nothing is learned from these.
    """

    length_state: Any
    guess: Guess
    certain: Int[Array, "b"]


class LookupDrafter(AdjustableDrafter):
    """Copies its drafts from existing text; a subclass is a dataclass that finds them in `guess`.

    Attributes:
      k: the largest number of drafts a round, or a `DraftLength`.

    Example:
      >>> import dataclasses
      >>> @jaxspec.core.register_dataclass
      ... @dataclasses.dataclass(frozen=True)
      ... class RepeatDrafter(jaxspec.drafters.LookupDrafter):
      ...     k: int = dataclasses.field(default=3, metadata={"static": True})
      ...     def guess(self, tokens, length):
      ...         last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
      ...         guessed = jnp.repeat(last, self.k, axis=1)
      ...         count = jnp.full_like(length, self.k)
      ...         return jaxspec.drafters.Guess(guessed, count, jnp.full(guessed.shape, 0.5))
      >>> RepeatDrafter().guess(prompt, jnp.asarray([5, 3], jnp.int32)).tokens.tolist()
      [[6, 6, 6], [7, 7, 7]]
    """

    k: int | DraftLength

    @property
    def draft_length(self) -> DraftLength:
        return as_draft_length(self.k)

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({0, *self.draft_length.lengths}))

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(costs=lambda model, k: DraftCosts(PASS, 0.0))

    @abc.abstractmethod
    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        """Guesses the tokens that may follow each row's text.

        Args:
          tokens: the text; row `b` is `tokens[b, :length[b]]`.
          length: the number of tokens of each row, at least 1.

        Returns:
          A `Guess` of `max_drafts` tokens.
        """

    def check(self, target: Model) -> None:
        self.draft_length.check()

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> LookupState:
        batch = context.tokens.shape[0]
        tokens, none = jnp.zeros((batch, self.max_drafts), jnp.int32), jnp.zeros(batch, jnp.int32)
        guess = Guess(tokens, none, tokens.astype(jnp.float32))
        return LookupState(self.draft_length.init(batch), guess, none)

    def held(self, state: LookupState) -> None:
        """Returns no limit, as everything that is copied is found in the text."""

    def extend(
        self, state: LookupState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> LookupState:
        return self.init(context, prefilled, 0)

    def propose(self, rng: Rng, state: LookupState, context: Context) -> tuple[Proposal, LookupState]:
        active = context.active
        longest = lambda *rows: context.at_most(self.draft_length.longest(*rows))  # noqa: E731
        search = lambda: self.guess(*context.searched)  # noqa: E731
        # The search is skipped if no row would draft even if every row found a match.
        idle = lambda: dataclasses.replace(state.guess, count=jnp.zeros_like(context.length))  # noqa: E731
        may_draft = jnp.any(longest(state.length_state, active, active) > 0)
        guess = jax.lax.cond(may_draft, search, idle) if 0 in self.draft_length.lengths else search()
        certain = jnp.zeros_like(context.length)
        if context.processors:
            guess, certain = follow_forced(context, guess)
        found = active & (guess.count > 0)
        most = self.draft_length.longest_certain(state.length_state, found, active, certain)
        guess = guess.cut(context.at_most(most))
        valid = guess.places < guess.count[:, None]
        return Proposal(guess.tokens, valid), LookupState(state.length_state, guess, certain)

    def observe(self, state: LookupState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> LookupState:
        submitted = state.guess.count
        draftable = context.draftable & (state.certain == 0)
        length_state = self.draft_length.observe(
            state.length_state, submitted, verdict.accepted, draftable, context.active
        )
        return dataclasses.replace(state, length_state=length_state)


def follow_forced(context: Context, guess: Guess) -> tuple[Guess, Int[Array, "b"]]:
    """Inserts the tokens that the target's policy forces into a guess, and ends it before tokens that it excludes.

    Returns:
      The guess, which ends where it departs from a forced token, and how many of its leading tokens are forced.
    """
    policy, states = context.sampling, context.processed
    must = jnp.zeros(guess.tokens.shape, jnp.bool_)
    for one, state in zip(processing.processors_of(policy), states, strict=True):
        if (led := one.lead(state, guess.tokens, guess.count)) is not None:
            guess, must = Guess(led[0], led[1], _chances(guess, led[2])), led[2]
    batch, k = guess.tokens.shape
    path, active, own = jnp.full((batch, 1, k), -1, jnp.int32), jnp.ones(batch, jnp.bool_), guess.count
    tokens, due = [], []
    for i in range(k):
        token = guess.tokens[:, i]
        forced = processing.next_forced(policy, states, path)[:, 0]
        guessed = (i < own) & processing.allows(policy, states, path, token[:, None])[:, 0]
        active = active & ((forced >= 0) | guessed)
        own = jnp.where((forced >= 0) & (forced != token), i, own)
        token = jnp.where(forced >= 0, forced, token)
        path = path.at[:, 0, i].set(jnp.where(active, token, -1))
        tokens.append(jnp.where(active, token, 0))
        due.append(active & ((forced >= 0) | must[:, i]))
    count = jnp.sum(path[:, 0] >= 0, axis=1, dtype=jnp.int32)
    must = jnp.stack(due, axis=1)
    return Guess(jnp.stack(tokens, axis=1), count, _chances(guess, must)), count_leading(must)


def _chances(guess: Guess, forced: Bool[Array, "b k"]) -> Float[Array, "b k"]:
    """Returns `cum_accept_prob` with the forced tokens accepted for certain."""
    last = jnp.pad(guess.cum_accept_prob, ((0, 0), (1, 0)), constant_values=1.0)[:, :-1]
    share = jnp.where(last > 0, guess.cum_accept_prob / jnp.maximum(last, 1e-6), 0.0)
    return jnp.cumprod(jnp.where(forced, 1.0, jnp.minimum(share, 1.0)), axis=1)


def one_hot(tokens: Int[Array, "b k"], vocab_size: int) -> Float[Array, "b k v"]:
    """Returns one-hot log-probabilities, for a proposal that mixes certain drafts with sampled ones."""
    ids = jnp.arange(vocab_size, dtype=jnp.int32)[None, None]
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)
