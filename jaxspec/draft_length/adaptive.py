"""Chooses the number of drafts that pays most, from what was accepted and what rounds cost."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import DraftLength

LEAST, MOST = 0.02, 0.98
# How many rounds the prior counts as, the newest round among them.
PRIOR_ROUNDS = 4


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveState:
    """Holds the state of `Adaptive`: what each row has seen.

    Attributes:
      acceptance: the running probability that draft `i` is accepted, those before it being so.
      seen: how many rounds reached draft `i`.
      choice: which of the lengths the row drafts.
      rounds: how many rounds it has had.
      due: whether the next longer length is to be tried.
      balance: what may be lost yet, in rounds of plain decoding.
      missed: tokens of the text since the drafter last ran.
      beside: the most tokens that rows missed for which something else drafts this round.
    """

    acceptance: Float[Array, "b k"]
    seen: Int[Array, "b k"]
    choice: Int[Array, "b"]
    rounds: Int[Array, "b"]
    due: Bool[Array, "b"]
    balance: Float[Array, "b"]
    missed: Int[Array, "b"]
    beside: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Adaptive(DraftLength):
    """Drafts as many tokens as pay most: expected tokens over the cost of a round. It cannot lose much.

    With the running acceptance `a_1, a_2, ...` of each position (updated by rounds that reached
    it; one that none has reached yet is taken to be like the one before it) a row drafts the
    length `n` with the largest

        (1 + a_1 + a_1 a_2 + ... + a_1 ... a_n) / cost(n)

    where that beats its present length by more than `margin`. A row's length is at first the shortest. In the first
    round, and every `period` rounds, the next longer one is tried, and again for as long as each trial emits more for
    its cost than the present length promises: so a draft that becomes good is found. Rows that began together try in
    the same rounds, whose time they share.

    A round takes the time of its longest row. So no row drafts more than the length that gives
    all rows together the most expected tokens for its cost, of those that rows want, unless most
    of them try a longer one.

    Whatever the formulas say, a round drafts no more than it can pay for. With costs in rounds of
    plain decoding each row has an account:

        balance = advance                                             before the first round
        balance = min(reserve, balance + (1 + allowance) (1 + accepted) - cost)       after a round

    where `cost` is that of the longest row, and a length is drafted only if no row's balance would
    fall below 0 with nothing accepted. A plain round never lowers it, so for any drafter and any
    text, by the table of costs, with `lengths[0] = 0` and `cost(0) = 1`, in each row:

        time of n tokens <= (1 + allowance) n + advance               from the start of the text
        time of n tokens <= (1 + allowance) n + reserve               over any stretch of rounds

    With the defaults 128 tokens take at most 1.8 % longer than plain decoding, and 1,000 at most
    1 %. If drafting really adds `x` times what the table says, losses are up to `x` times that.
    A drafter may also take time while it rests, which no table has: an EAGLE head on a CPU some
    hundredths of a step, and more of a step of many rows.

    How much a row drafts depends on the rows beside it, and so do the tokens that it draws at temperatures above 0,
    except with coupled verification; never their distribution. When rows decided alone, eight of them took 1.4 times as
    long as plain decoding on a CPU: each that drafted made the others wait.

    Attributes:
      costs: a round's time at each length, relative to plain decoding, traced. Measure them with
        `jaxspec plan --save`, or `jaxspec.bench.costs.measure_costs`.
      lengths: the numbers of drafts to choose from, rising; verification is compiled for each.
      margin: the gain that a change of length must promise.
      rate: the weight of the newest round in the running acceptance, once there were many.
      prior: the acceptance that positions start from; it counts as three rounds.
      period: rounds between trials of a longer length.
      allowance: the share of plain decoding's time that may be lost for good.
      advance: rounds of plain decoding that may be lost besides.
      reserve: what gains add up to at most, to be lost later: rounds of plain decoding.
      lag: the time of reading one token of the text that the drafter missed while it drafted
        nothing, relative to plain decoding; it reads them before it drafts again.

    References:
      Leviathan et al. (2022), arXiv:2211.17192, section 3, with costs measured instead of modeled.

    Example:
      >>> length = jaxspec.Adaptive(costs=(1.0, 1.2, 1.4), lengths=(0, 2, 4))
      >>> drafter = jaxspec.ModelDrafter(draft, k=length)
      >>> drafter.max_drafts, drafter.lengths
      (4, (0, 2, 4))
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    costs: Float[Array, "n"] | tuple[float, ...]
    lengths: tuple[int, ...] = dataclasses.field(default=(0, 2, 4, 8), metadata={"static": True})
    margin: float = dataclasses.field(default=0.03, metadata={"static": True})
    rate: float = dataclasses.field(default=0.05, metadata={"static": True})
    prior: float = dataclasses.field(default=0.7, metadata={"static": True})
    period: int = dataclasses.field(default=64, metadata={"static": True})
    allowance: float = dataclasses.field(default=0.008, metadata={"static": True})
    advance: float = dataclasses.field(default=1.25, metadata={"static": True})
    reserve: float = dataclasses.field(default=12.0, metadata={"static": True})
    lag: float = dataclasses.field(default=0.0, metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", validate.draft_lengths(self.lengths))
        # Transformations rebuild a pytree with any objects as leaves, such as tuples of shapes.
        if isinstance(self.costs, tuple | list) and any(isinstance(cost, float) for cost in self.costs):
            object.__setattr__(self, "costs", jnp.asarray(self.costs, jnp.float32))
            validate.costs(self.costs, self.lengths)
        bounds = {name: (getattr(self, name), 0, 1) for name in ("rate", "prior")}
        bounds |= {name: (getattr(self, name), 0, math.inf) for name in ("margin", "allowance", "advance", "lag")}
        bounds |= {"reserve": (self.reserve, self.advance, math.inf), "period": (self.period, 1, math.inf)}
        validate.in_range("Adaptive", **bounds)

    def check(self) -> None:
        validate.costs(self.costs, self.lengths)

    def init(self, batch: int) -> AdaptiveState:
        zero, shape = jnp.zeros(batch, jnp.int32), (batch, self.lengths[-1])
        return AdaptiveState(
            acceptance=jnp.full(shape, self.prior, jnp.float32),
            seen=jnp.zeros(shape, jnp.int32),
            choice=zero,
            rounds=zero,
            due=jnp.ones(batch, jnp.bool_),
            balance=jnp.full(batch, self.advance, jnp.float32),
            missed=zero,
            beside=zero,
        )

    def longest(self, state: AdaptiveState, able: Bool[Array, "b"]) -> Int[Array, "b"]:
        tries = state.due & (state.choice < len(self.lengths) - 1)
        wanted = state.choice + tries.astype(jnp.int32)
        index = jnp.arange(len(self.lengths), dtype=jnp.int32)[None]
        # In the worst case a round emits one token for its whole cost.
        prices = self._prices(state, able)
        balance = jnp.min(state.balance, where=able, initial=jnp.inf)
        paid_for = (balance + self._earned(jnp.int32(1)) >= prices)[None]
        affordable = (index <= wanted[:, None]) & (paid_for | (index == 0))
        paid = jnp.max(jnp.where(affordable, index, 0), axis=1)
        return self._length(jnp.minimum(paid, self._longest(state.acceptance, paid, tries & (paid == wanted), able)))

    def observe(
        self, state: AdaptiveState, submitted: Int[Array, "b"], accepted: Int[Array, "b"], live: Bool[Array, "b"]
    ) -> AdaptiveState:
        acceptance, seen = self._acceptance(state, submitted, accepted)
        speed = self._speed(acceptance)
        present = _at(speed, state.choice)
        best = jnp.argmax(speed, axis=1).astype(jnp.int32)
        moves = _at(speed, best) > (1.0 + self.margin) * present
        tried = submitted > self._length(state.choice)
        emitted = 1 + accepted
        earned = self._earned(1 + jnp.minimum(submitted, accepted))
        price = self._price(state, submitted, live)
        vain = tried & (emitted.astype(present.dtype) <= present * self._cost(state.choice + 1))
        rounds = state.rounds + 1
        fresh = AdaptiveState(
            acceptance,
            seen,
            jnp.where(moves, best, state.choice),
            rounds,
            (state.due & ~(moves | vain)) | (rounds % self.period == 0),
            jnp.minimum(self.reserve, state.balance + earned - price),
            self._missed(state, submitted, emitted, live),
            state.beside,
        )
        return jax.tree.map(lambda new, old: _where(live, new, old), fresh, state)

    def rest(
        self, state: AdaptiveState, submitted: Int[Array, "b"], accepted: Int[Array, "b"], resting: Bool[Array, "b"]
    ) -> AdaptiveState:
        missed = self._missed(state, submitted, 1 + accepted, jnp.ones(resting.shape, jnp.bool_))
        return dataclasses.replace(state, missed=jnp.where(resting, missed, state.missed))

    def surplus(self, state: AdaptiveState, submitted: Int[Array, "b"], live: Bool[Array, "b"]) -> Float[Array, ""]:
        """Returns the time that a round takes beyond one without drafts, relative to plain decoding."""
        return self._price(state, submitted, live) - self._cost(jnp.int32(0))

    def _missed(self, state: AdaptiveState, submitted, emitted, live: Bool[Array, "b"]) -> Int[Array, "b"]:
        """Counts the tokens that the drafter has missed. Where it runs for some rows it reads what all have missed."""
        ran = jnp.any(live & (submitted > 0))
        return jnp.where(ran, 0, state.missed) + jnp.where(submitted > 0, 0, emitted)

    def _longest(self, acceptance, index: Int[Array, "b"], tries: Bool[Array, "b"], able: Bool[Array, "b"]):
        """Chooses the length, of those that rows want, that gives all rows the most; the longest where most try it."""
        lengths = jnp.arange(len(self.lengths), dtype=jnp.int32)
        cut = jnp.minimum(index[:, None], lengths[None])
        tokens = jnp.sum(jnp.take_along_axis(self._tokens(acceptance), cut, axis=1), axis=0, where=able[:, None])
        longest = jnp.max(index, where=able, initial=0)
        speed = jnp.where(lengths <= longest, tokens / jnp.asarray(self.costs, jnp.float32), 0.0)
        best = jnp.argmax(speed).astype(jnp.int32)
        trial = 2 * jnp.sum(tries & able, dtype=jnp.int32) > jnp.sum(able, dtype=jnp.int32)
        stays = trial | (speed[best] <= (1.0 + self.margin) * speed[longest])
        return jnp.where(stays, longest, best)

    def _earned(self, emitted: Int[Array, "*b"]) -> Float[Array, "*b"]:
        """Returns what tokens add to the balance: their time in plain decoding, and the share that may be lost."""
        costs = jnp.asarray(self.costs, jnp.float32)
        return (1.0 + self.allowance) * costs[0] * emitted.astype(jnp.float32)

    def _prices(self, state: AdaptiveState, rows: Bool[Array, "b"]) -> Float[Array, "n"]:
        """Returns a round's time at each length, with that of reading the tokens that any row missed."""
        missed = jnp.max(jnp.maximum(state.missed, state.beside), where=rows, initial=0)
        reads = jnp.asarray([self.lag * (length > 0) for length in self.lengths], jnp.float32)
        return jnp.asarray(self.costs, jnp.float32) + missed.astype(jnp.float32) * reads

    def _price(self, state: AdaptiveState, submitted: Int[Array, "b"], rows: Bool[Array, "b"]) -> Float[Array, ""]:
        """Returns the time that a round took: that of the shortest pass that holds what was submitted."""
        longest = jnp.max(submitted, where=rows, initial=0)
        index = jnp.sum(longest > jnp.asarray(self.lengths, jnp.int32), dtype=jnp.int32)
        return self._prices(state, rows)[index]

    def _acceptance(self, state: AdaptiveState, submitted, accepted):
        """Returns running acceptance and counts after one more round; positions that it did not reach stay."""
        position = jnp.arange(state.seen.shape[1], dtype=jnp.int32)[None]
        reached = (position < submitted[:, None]) & (position <= accepted[:, None])
        right = (position < accepted[:, None]).astype(state.acceptance.dtype)
        # A plain mean over the first rounds, then an exponential average.
        weight = jnp.maximum(self.rate, 1.0 / (state.seen + PRIOR_ROUNDS).astype(right.dtype))
        moved = jnp.clip(state.acceptance + weight * (right - state.acceptance), LEAST, MOST)
        acceptance, seen = jnp.where(reached, moved, state.acceptance), state.seen + reached.astype(jnp.int32)
        # Rounds reach positions in order, so the unseen ones are the last.
        known = jnp.sum(seen > 0, axis=1, dtype=jnp.int32)
        last = _at(acceptance, jnp.maximum(known - 1, 0))[:, None]
        new = (position >= known[:, None]) & (known > 0)[:, None]
        return jnp.where(new, last, acceptance), seen

    def _tokens(self, acceptance) -> Float[Array, "b n"]:
        """Returns the expected tokens of a round, at each length."""
        each = jnp.cumsum(jnp.cumprod(acceptance, axis=1), axis=1)
        return 1.0 + jnp.pad(each, ((0, 0), (1, 0)))[:, np.asarray(self.lengths)]

    def _speed(self, acceptance) -> Float[Array, "b n"]:
        """Returns the expected tokens in the time of a plain round, at each length."""
        return self._tokens(acceptance) / jnp.asarray(self.costs, jnp.float32)[None]

    def _length(self, index: Int[Array, "b"]) -> Int[Array, "b"]:
        return jnp.asarray(self.lengths, jnp.int32)[index]

    def _cost(self, index: Int[Array, "*b"]) -> Float[Array, "*b"]:
        return jnp.asarray(self.costs, jnp.float32)[jnp.minimum(index, len(self.lengths) - 1)]


def _at(values: Float[Array, "b n"], index: Int[Array, "b"]) -> Float[Array, "b"]:
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _where(live, new: Any, old: Any):
    return jnp.where(live.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
