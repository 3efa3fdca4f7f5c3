"""Pick the number of drafts that pays most, from what was accepted and what rounds cost."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxspec import checks
from jaxspec.pytree import register_dataclass
from jaxspec.schedules.base import Schedule

LEAST, MOST = 0.02, 0.98
# How many rounds the prior counts as, the newest round among them.
PRIOR_ROUNDS = 4


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveState:
    """What each row has seen.

    Attributes:
      acceptance: the running probability that draft `i` is accepted, those before it being so.
      seen: how many rounds reached draft `i`.
      choice: which of the lengths the row drafts.
      waited: rounds since the last longer length was tried in vain, or the choice changed.
    """

    acceptance: Float[Array, "b k"]
    seen: Int[Array, "b k"]
    choice: Int[Array, "b"]
    waited: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Adaptive(Schedule):
    """Drafts as many tokens as pay most: expected tokens a round over what the round costs.

    With the running acceptance `a_1, a_2, ...` of each position (updated by rounds that reached
    it) a row drafts the length `n` with the largest

        (1 + a_1 + a_1 a_2 + ... + a_1 ... a_n) / cost(n)

    where that beats its present length by more than `margin`. Leviathan et al. 2211.17192,
    section 3, with costs measured instead of modelled. At the start, and after `period` rounds
    without a trial, the next longer length is tried, and again for as long as each trial emits
    more for its cost than the present length promises. So a draft that becomes good is found, and
    trials in vain take at most one round in `period + 1`: a row at length 0 loses less than
    `(cost(next) - 1) / period` of its time to them, and what the draft model then reads of the
    text that it missed.

    Rows decide by their own acceptance alone. A round takes the time of its longest row.

    Attributes:
      costs: a round's time at each length, relative to plain decoding, traced. Measure them with
        `python -m jaxspec.bench costs`, or `jaxspec.bench.costs.measure_costs`.
      lengths: what is picked among, rising; verification is compiled for each.
      margin: the gain that a change of length must promise.
      rate: the weight of the newest round in the running acceptance, once there were many.
      prior: the acceptance that each position starts from; it counts as three rounds.
      period: rounds between trials of a longer length.
    """

    costs: Float[Array, "n"] | tuple[float, ...]
    lengths: tuple[int, ...] = dataclasses.field(default=(0, 2, 4, 8), metadata={"static": True})
    margin: float = dataclasses.field(default=0.03, metadata={"static": True})
    rate: float = dataclasses.field(default=0.05, metadata={"static": True})
    prior: float = dataclasses.field(default=0.7, metadata={"static": True})
    period: int = dataclasses.field(default=64, metadata={"static": True})

    def __post_init__(self):
        object.__setattr__(self, "lengths", checks.draft_lengths(self.lengths))
        # Transformations rebuild a pytree with anything as leaves, tuples such as shapes among it.
        if isinstance(self.costs, tuple | list) and any(isinstance(cost, float) for cost in self.costs):
            object.__setattr__(self, "costs", jnp.asarray(self.costs, jnp.float32))
            checks.costs(self.costs, self.lengths)
        shares = {name: (getattr(self, name), 0, 1) for name in ("rate", "prior")}
        checks.in_range("Adaptive", margin=(self.margin, 0, math.inf), period=(self.period, 1, math.inf), **shares)

    def check(self) -> None:
        checks.costs(self.costs, self.lengths)

    def init(self, batch):
        acceptance = jnp.full((batch, self.lengths[-1]), self.prior, jnp.float32)
        seen = jnp.zeros(acceptance.shape, jnp.int32)
        choice = jnp.argmax(self._speed(acceptance), axis=1).astype(jnp.int32)
        return AdaptiveState(acceptance, seen, choice, jnp.full(batch, self.period, jnp.int32))

    def limit(self, state):
        return self._length(state.choice + self._tries(state))

    def observe(self, state, submitted, accepted, live):
        acceptance, seen = self._acceptance(state, submitted, accepted)
        speed = self._speed(acceptance)
        present = _at(speed, state.choice)
        best = jnp.argmax(speed, axis=1).astype(jnp.int32)
        moves = _at(speed, best) > (1.0 + self.margin) * present
        tried = submitted > self._length(state.choice)
        emitted = (1 + accepted).astype(present.dtype)
        vain = tried & (emitted <= present * self._cost(state.choice + 1))
        waited = jnp.where(tried, state.waited, jnp.minimum(state.waited + 1, self.period))
        fresh = AdaptiveState(
            acceptance,
            seen,
            jnp.where(moves, best, state.choice),
            jnp.where(moves | vain, 0, waited),
        )
        return jax.tree.map(lambda new, old: _where(live, new, old), fresh, state)

    def _tries(self, state: AdaptiveState) -> Int[Array, "b"]:
        """1 where the next longer length is due."""
        due = (state.waited >= self.period) & (state.choice < len(self.lengths) - 1)
        return due.astype(jnp.int32)

    def _acceptance(self, state: AdaptiveState, submitted, accepted):
        """Running acceptance and counts after one more round; what it did not reach stays."""
        position = jnp.arange(state.seen.shape[1], dtype=jnp.int32)[None]
        reached = (position < submitted[:, None]) & (position <= accepted[:, None])
        kept = (position < accepted[:, None]).astype(state.acceptance.dtype)
        # A plain mean over the first rounds, then one that forgets.
        weight = jnp.maximum(self.rate, 1.0 / (state.seen + PRIOR_ROUNDS).astype(kept.dtype))
        moved = jnp.clip(state.acceptance + weight * (kept - state.acceptance), LEAST, MOST)
        return jnp.where(reached, moved, state.acceptance), state.seen + reached.astype(jnp.int32)

    def _speed(self, acceptance) -> Float[Array, "b n"]:
        """Expected tokens for the time of a plain round, at each length."""
        each = jnp.cumsum(jnp.cumprod(acceptance, axis=1), axis=1)
        expected = 1.0 + jnp.pad(each, ((0, 0), (1, 0)))[:, np.asarray(self.lengths)]
        return expected / jnp.asarray(self.costs, jnp.float32)[None]

    def _length(self, index: Int[Array, "b"]) -> Int[Array, "b"]:
        return jnp.asarray(self.lengths, jnp.int32)[index]

    def _cost(self, index: Int[Array, "b"]) -> Float[Array, "b"]:
        return jnp.asarray(self.costs, jnp.float32)[jnp.minimum(index, len(self.lengths) - 1)]


def _at(values: Float[Array, "b n"], index: Int[Array, "b"]) -> Float[Array, "b"]:
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _where(live, new: Any, old: Any):
    return jnp.where(live.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
