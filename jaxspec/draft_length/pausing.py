"""Another schedule, silenced in rows where something else drafts."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import DraftLength


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PausingState:
    """The schedule's own state, and which rows draft nothing this round: to be set before it."""

    schedule: Any
    paused: Bool[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Pausing(DraftLength):
    """`schedule`, but for rows that are paused: those draft nothing, and rest."""

    schedule: DraftLength

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.schedule.lengths

    @property
    def reads_log_probs(self) -> bool:
        """As of `schedule`."""
        return self.schedule.reads_log_probs

    @property
    def reads_confidence(self) -> bool:
        """As of `schedule`."""
        return self.schedule.reads_confidence

    def check(self) -> None:
        self.schedule.check()

    def init(self, batch):
        return PausingState(self.schedule.init(batch), jnp.zeros(batch, jnp.bool_))

    def longest(self, state: PausingState, able):
        return jnp.where(state.paused, 0, self.schedule.longest(state.schedule, able & ~state.paused))

    def should_verify(self, state: PausingState, cum_accept_prob):
        return self.schedule.should_verify(state.schedule, cum_accept_prob)

    def should_draft(self, state: PausingState, log_probs):
        return self.schedule.should_draft(state.schedule, log_probs)

    def continue_(self, state: PausingState, log_prob):
        return self.schedule.continue_(state.schedule, log_prob)

    def observe(self, state: PausingState, submitted, accepted, live):
        own = self.schedule.observe(state.schedule, submitted, accepted, live & ~state.paused)
        rested = self.schedule.rest(own, submitted, accepted, live & state.paused)
        return PausingState(rested, state.paused)
