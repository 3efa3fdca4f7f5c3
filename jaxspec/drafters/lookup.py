"""Copies drafts from text that is there already: each is a function of the text, and nothing is drawn."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import processing
from jaxspec.core.model import Model
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.rows import count_leading
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import DraftLength, as_draft_length
from jaxspec.draft_length.costs import PASS, CostModel, DraftCosts
from jaxspec.drafters.adjustable import AdjustableDrafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Guess:
    """Holds a guess of what follows each row's text, with the drafter's confidence in it.

    Attributes:
      tokens: the guessed tokens.
      count: how many of them are meant, from the first.
      cum_accept_prob: the probability, as the drafter estimates it, that draft `i` and all before it are
        accepted. Falling; of no meaning beyond `count`.

    Example:
      >>> tokens, chances = jnp.asarray([[5, 6, 7]], jnp.int32), jnp.asarray([[0.5, 0.25, 0.125]])
      >>> guess = jaxspec.drafters.Guess(tokens, jnp.asarray([2], jnp.int32), chances)
      >>> guess.expected(jnp.asarray([3], jnp.int32)).tolist()  # of the two that are meant
      [0.75]
    """

    tokens: Int[Array, "b k"]
    count: Int[Array, "b"]
    cum_accept_prob: Float[Array, "b k"]

    def expected(self, most: Int[Array, "b"]) -> Float[Array, "b"]:
        """Returns how many of the first `most` drafts of each row are expected to be accepted."""
        meant = self.places < jnp.minimum(self.count, most)[:, None]
        return jnp.sum(jnp.where(meant, self.cum_accept_prob, 0.0), axis=1)

    def cut(self, longest: Int[Array, "b"]) -> "Guess":
        """Returns the same guess with at most `longest` drafts a row."""
        return dataclasses.replace(self, count=jnp.minimum(self.count, longest))

    @property
    def places(self) -> Int[Array, "1 k"]:
        """Each draft's number in its row."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LookupState:
    """Holds the state of a drafter that copies.

    Attributes:
      length_state: the draft length's own.
      guess: the last round's, of which `count` drafts were submitted.
      certain: how many of them had to come, from the first: nothing is learned from these.
    """

    length_state: Any
    guess: Guess
    certain: Int[Array, "b"]


class LookupDrafter(AdjustableDrafter):
    """Copies its drafts from text that is there already; a subclass is a dataclass that finds them in `guess`.

    Attributes:
      k: the most drafted tokens a round, or a `DraftLength`.

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

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return DraftCosts(PASS, 0.0)

    @abc.abstractmethod
    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        """Guesses what may follow `tokens[b, :length[b]]`."""

    def check(self, target: Model) -> None:
        self.draft_length.check()

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> LookupState:
        batch = context.tokens.shape[0]
        tokens, none = jnp.zeros((batch, self.max_drafts), jnp.int32), jnp.zeros(batch, jnp.int32)
        guess = Guess(tokens, none, tokens.astype(jnp.float32))
        return LookupState(self.draft_length.init(batch), guess, none)

    def propose(self, rng: Rng, state: LookupState, context: Context) -> tuple[Proposal, LookupState]:
        live = context.live
        longest = lambda *rows: context.at_most(self.draft_length.longest(*rows))  # noqa: E731
        search = lambda: self.guess(*context.searched)  # noqa: E731
        # The search is skipped if no row would draft though all found something.
        idle = lambda: dataclasses.replace(state.guess, count=jnp.zeros_like(context.length))  # noqa: E731
        may_draft = jnp.any(longest(state.length_state, live, live) > 0)
        guess = jax.lax.cond(may_draft, search, idle) if 0 in self.draft_length.lengths else search()
        certain = jnp.zeros_like(context.length)
        if context.processors:
            guess, certain = follow_forced(context, guess)
        found = live & (guess.count > 0)
        most = self.draft_length.longest_certain(state.length_state, found, live, certain)
        guess = guess.cut(context.at_most(most))
        valid = guess.places < guess.count[:, None]
        return Proposal(guess.tokens, valid), LookupState(state.length_state, guess, certain)

    def observe(self, state: LookupState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> LookupState:
        submitted = state.guess.count
        able = context.able & (state.certain == 0)
        length_state = self.draft_length.observe(state.length_state, submitted, verdict.accepted, able, context.live)
        return dataclasses.replace(state, length_state=length_state)


def follow_forced(context: Context, guess: Guess) -> tuple[Guess, Int[Array, "b"]]:
    """Returns the guess with the tokens that the target's policy leaves no choice about, without those it excludes.

    How many of them stand at its beginning is returned too. A guess that goes another way than what must come is
    dropped from there on.
    """
    policy, states = context.sampling, context.processed
    must = jnp.zeros(guess.tokens.shape, jnp.bool_)
    for one, state in zip(processing.processors_of(policy), states, strict=True):
        if (led := one.lead(state, guess.tokens, guess.count)) is not None:
            guess, must = Guess(led[0], led[1], _chances(guess, led[2])), led[2]
    batch, k = guess.tokens.shape
    path, going, own = jnp.full((batch, 1, k), -1, jnp.int32), jnp.ones(batch, jnp.bool_), guess.count
    tokens, due = [], []
    for i in range(k):
        token = guess.tokens[:, i]
        forced = processing.next_forced(policy, states, path)[:, 0]
        guessed = (i < own) & processing.allows(policy, states, path, token[:, None])[:, 0]
        going = going & ((forced >= 0) | guessed)
        own = jnp.where((forced >= 0) & (forced != token), i, own)
        token = jnp.where(forced >= 0, forced, token)
        path = path.at[:, 0, i].set(jnp.where(going, token, -1))
        tokens.append(jnp.where(going, token, 0))
        due.append(going & ((forced >= 0) | must[:, i]))
    count = jnp.sum(path[:, 0] >= 0, axis=1, dtype=jnp.int32)
    must = jnp.stack(due, axis=1)
    return Guess(jnp.stack(tokens, axis=1), count, _chances(guess, must)), count_leading(must)


def _chances(guess: Guess, forced: Bool[Array, "b k"]) -> Float[Array, "b k"]:
    """Returns `cum_accept_prob` where some of the tokens must come."""
    last = jnp.pad(guess.cum_accept_prob, ((0, 0), (1, 0)), constant_values=1.0)[:, :-1]
    share = jnp.where(last > 0, guess.cum_accept_prob / jnp.maximum(last, 1e-6), 0.0)
    return jnp.cumprod(jnp.where(forced, 1.0, jnp.minimum(share, 1.0)), axis=1)


def one_hot(tokens: Int[Array, "b k"], vocab_size: int) -> Float[Array, "b k v"]:
    """Returns the log-probabilities of certain drafts, for a proposal whose other drafts are drawn."""
    ids = jnp.arange(vocab_size, dtype=jnp.int32)[None, None]
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)
