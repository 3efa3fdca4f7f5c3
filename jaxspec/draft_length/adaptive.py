"""Chooses the number of drafts with the highest expected speed, from past acceptance and the costs of rounds."""

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
# The weight of the prior in rounds, including the newest round.
PRIOR_ROUNDS = 4


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptiveState:
    """Holds the statistics of `Adaptive` for each row.

    Attributes:
      acceptance: the running probability that draft `i` is accepted, given that all before it are.
      seen: the number of rounds that reached draft `i`.
      rounds: the number of rounds in which the row could draft.
      due: whether to try the next longer length.
      emitted: the number of tokens emitted so far.
    """

    acceptance: Float[Array, "b k"]
    seen: Int[Array, "b k"]
    rounds: Int[Array, "b"]
    due: Bool[Array, "b"]
    emitted: Int[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Adaptive(DraftLength):
    """Drafts the number of tokens with the highest expected speed: tokens over all rows, divided by a round's cost.

    Given the running acceptance `a_1, a_2, ...` of its positions, a row expects from `n` drafts

        1 + a_1 + a_1 a_2 + ... + a_1 ... a_n

    tokens, or one if it cannot draft. A round takes the time of its longest row, so all rows draft the same length. It
    is the one with the most tokens for its cost, or 0 if none is worth it. A batch takes the time of its slowest row.
    So a length must be worth it for all rows together, and also for those that have emitted no more than the mean.
    Acceptance is an exponential average over the rounds that reached a position; a position that was never reached is
    assumed to be like the one before it.

    Every `period` rounds the next longer length is tried, and again for as long as each trial emits more for its cost
    than the current length promises. Such a trial also weighs like the first rounds, so that a draft that improves is
    noticed. A useless draft is dropped after the time of about two rounds of plain decoding, plus a trial every
    `period` rounds.

    The number of drafts of a row depends on the other rows of its batch. So do the tokens that it draws at temperatures
    above 0, except with coupled verification; their distribution never does.

    Attributes:
      costs: a round's time at each length, relative to plain decoding, traced. Measure them with
        `jaxspec plan --save`, or `jaxspec.bench.costs.measure_costs`.
      lengths: the numbers of drafts to choose from, increasing; verification is compiled for each.
      rate: the weight of the newest round in the running acceptance, after the first rounds.
      prior: the initial acceptance of each position; it has the weight of three rounds.
      period: the number of rounds between trials of a longer length.

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
    rate: float = dataclasses.field(default=0.05, metadata={"static": True})
    prior: float = dataclasses.field(default=0.7, metadata={"static": True})
    period: int = dataclasses.field(default=128, metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", validate.draft_lengths(self.lengths))
        # Transformations rebuild a pytree with any objects as leaves, such as tuples of shapes.
        if isinstance(self.costs, tuple | list) and any(isinstance(cost, float) for cost in self.costs):
            if not all(isinstance(cost, int | float) for cost in self.costs):
                validate.costs(self.costs, self.lengths)  # raises
            object.__setattr__(self, "costs", jnp.asarray(self.costs, jnp.float32))
            validate.costs(self.costs, self.lengths)
        shares = {"rate": (self.rate, 0, 1), "prior": (self.prior, 0, 1)}
        validate.in_range("Adaptive", **shares, period=(self.period, 1, math.inf))

    def check(self) -> None:
        validate.costs(self.costs, self.lengths)

    def init(self, batch: int) -> AdaptiveState:
        shape = (batch, self.lengths[-1])
        return AdaptiveState(
            acceptance=jnp.full(shape, self.prior, jnp.float32),
            seen=jnp.zeros(shape, jnp.int32),
            rounds=jnp.zeros(batch, jnp.int32),
            due=jnp.zeros(batch, jnp.bool_),
            emitted=jnp.zeros(batch, jnp.int32),
        )

    def longest(self, state: AdaptiveState, draftable: Bool[Array, "b"], active: Bool[Array, "b"]) -> Int[Array, "b"]:
        best, _ = self._best(state, draftable, active)
        trial = jnp.any(state.due & draftable).astype(jnp.int32)
        index = jnp.minimum(best + trial, len(self.lengths) - 1)
        return jnp.broadcast_to(jnp.asarray(self.lengths, jnp.int32)[index], draftable.shape)

    def longest_certain(
        self, state: AdaptiveState, draftable: Bool[Array, "b"], active: Bool[Array, "b"], certain: Int[Array, "b"]
    ) -> Int[Array, "b"]:
        sure = jnp.arange(self.lengths[-1], dtype=jnp.int32)[None] < certain[:, None]
        acceptance = jnp.where(sure, 1.0, state.acceptance)
        return self.longest(dataclasses.replace(state, acceptance=acceptance), draftable, active)

    def observe(
        self,
        state: AdaptiveState,
        submitted: Int[Array, "b"],
        accepted: Int[Array, "b"],
        draftable: Bool[Array, "b"],
        active: Bool[Array, "b"],
    ) -> AdaptiveState:
        drafted = draftable & (submitted > 0)
        best, promised = self._best(state, drafted, active)
        index = jnp.minimum(best + 1, len(self.lengths) - 1)
        tried = jnp.max(submitted, where=drafted, initial=0) > jnp.asarray(self.lengths, jnp.int32)[best]
        emitted = _mean(jnp.where(drafted, 1 + accepted, 1).astype(jnp.float32)[:, None], state, active)[0]
        pays = tried & (emitted > promised * jnp.asarray(self.costs, jnp.float32)[index])
        # A successful trial takes effect at once, regardless of the number of earlier rounds.
        seen = jnp.where(pays, 0, state.seen)
        rounds = state.rounds + 1
        due = jnp.where(tried, pays, state.due) | (rounds % self.period == 0)
        learned = self._acceptance(state.acceptance, seen, submitted, accepted)
        fresh = AdaptiveState(*learned, rounds, due, state.emitted)
        fresh = jax.tree.map(lambda new, old: _where(draftable, new, old), fresh, state)
        return dataclasses.replace(fresh, emitted=state.emitted + jnp.where(active, 1 + accepted, 0))

    def _best(
        self, state: AdaptiveState, draftable: Bool[Array, "b"], active: Bool[Array, "b"]
    ) -> tuple[Int[Array, ""], Float[Array, ""]]:
        """Returns the index of the fastest length, and its expected tokens in the time of a plain round."""
        each = jnp.cumsum(jnp.cumprod(state.acceptance, axis=1), axis=1)
        tokens = 1.0 + jnp.pad(each, ((0, 0), (1, 0)))[:, np.asarray(self.lengths)]
        speed = _mean(jnp.where(draftable[:, None], tokens, 1.0), state, active) / jnp.asarray(self.costs, jnp.float32)
        best = jnp.argmax(speed).astype(jnp.int32)
        return best, speed[best]

    def _acceptance(self, acceptance: Float[Array, "b k"], seen: Int[Array, "b k"], submitted, accepted):
        """Updates running acceptance and counts after a round, at the positions that it reached."""
        position = jnp.arange(seen.shape[1], dtype=jnp.int32)[None]
        reached = (position < submitted[:, None]) & (position <= accepted[:, None])
        right = (position < accepted[:, None]).astype(acceptance.dtype)
        # A plain mean over the first rounds, and an exponential average after those.
        weight = jnp.maximum(self.rate, 1.0 / (seen + PRIOR_ROUNDS).astype(right.dtype))
        moved = jnp.clip(acceptance + weight * (right - acceptance), LEAST, MOST)
        acceptance, seen = jnp.where(reached, moved, acceptance), seen + reached.astype(jnp.int32)
        # Rounds reach positions in order, so the unseen positions are the last ones.
        known = jnp.sum(seen > 0, axis=1, dtype=jnp.int32)
        last = jnp.take_along_axis(acceptance, jnp.maximum(known - 1, 0)[:, None], axis=1)
        new = (position >= known[:, None]) & (known > 0)[:, None]
        return jnp.where(new, last, acceptance), seen


def _mean(tokens: Float[Array, "b n"], state: AdaptiveState, active: Bool[Array, "b"]) -> Float[Array, "n"]:
    """Returns the mean over live rows, or over those at or below the average length if that is smaller."""
    count = jnp.sum(active, dtype=jnp.int32)
    lagging = active & (state.emitted * count <= jnp.sum(state.emitted, where=active))
    means = [
        jnp.sum(tokens, axis=0, where=rows[:, None]) / jnp.maximum(jnp.sum(rows, dtype=jnp.float32), 1.0)
        for rows in (active, lagging)
    ]
    return jnp.minimum(*means)


def _where(rows: Bool[Array, "b"], new: Any, old: Any) -> Any:
    return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
