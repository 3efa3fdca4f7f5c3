"""Drafters that copy: each draft is a function of text that is there already, and nothing is drawn."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Proposal
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Guess:
    """What may follow each row's text, and how sure of it the drafter is.

    Attributes:
      tokens: the guessed tokens.
      count: how many of them are meant, from the first.
      survival: the probability, as the drafter estimates it, that draft `i` and all before it are
        accepted. Falling; of no meaning beyond `count`.
    """

    tokens: Int[Array, "b k"]
    count: Int[Array, "b"]
    cum_accept_prob: Float[Array, "b k"]

    def expected(self, most: Int[Array, "b"]) -> Float[Array, "b"]:
        """How many of the first `most` drafts of each row are expected to be accepted."""
        meant = self.places < jnp.minimum(self.count, most)[:, None]
        return jnp.sum(jnp.where(meant, self.cum_accept_prob, 0.0), axis=1)

    def cut(self, limit: Int[Array, "b"]) -> "Guess":
        """The same with at most `limit` drafts a row."""
        return dataclasses.replace(self, count=jnp.minimum(self.count, limit))

    @property
    def places(self) -> Int[Array, "1 k"]:
        """Each draft's number."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LookupState:
    """The schedule's own state, and the last round's guess, of which `count` drafts were submitted."""

    schedule: Any
    guess: Guess


class LookupDrafter(Drafter):
    """Says in `guess` what it would copy; the rest of a drafter follows.

    Attributes:
      schedule: how many of the `k` drafts are submitted.
    """

    schedule: DraftLength

    deterministic: ClassVar[bool] = True

    @abc.abstractmethod
    def guess(self, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Guess:
        """What may follow `tokens[b, :length[b]]`."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({0, *self.schedule.lengths}))

    def check(self, target: Model) -> None:
        self.schedule.check()

    def init(self, context, prefilled, slots):
        batch = context.tokens.shape[0]
        tokens, none = jnp.zeros((batch, self.k), jnp.int32), jnp.zeros(batch, jnp.int32)
        guess = Guess(tokens, none, tokens.astype(jnp.float32))
        return LookupState(self.schedule.init(batch), guess)

    def propose(self, rng, state: LookupState, context):
        limit = self.schedule.longest(state.schedule, ~context.done)
        search = lambda: self.guess(context.tokens, context.length).cut(limit)  # noqa: E731
        # Where no row may draft, none is searched.
        idle = lambda: dataclasses.replace(state.guess, count=jnp.zeros_like(limit))  # noqa: E731
        guess = jax.lax.cond(jnp.any(limit > 0), search, idle) if 0 in self.schedule.lengths else search()
        valid = guess.places < guess.count[:, None]
        return Proposal(guess.tokens, valid), LookupState(state.schedule, guess)

    def observe(self, state: LookupState, context, verdict, hidden):
        schedule = self.schedule.observe(state.schedule, state.guess.count, verdict.accepted, ~context.done)
        return dataclasses.replace(state, schedule=schedule)


def one_hot(tokens: Int[Array, "b k"], vocab_size: int) -> Float[Array, "b k v"]:
    """The distribution of certain drafts, written out, for a proposal whose other drafts are drawn."""
    ids = jnp.arange(vocab_size, dtype=jnp.int32)[None, None]
    return jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)
