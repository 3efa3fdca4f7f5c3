"""Another schedule, silenced in rows where something else drafts."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import Schedule


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PausingState:
    """The schedule's own state, and which rows draft nothing this round: to be set before it."""

    schedule: Any
    paused: Bool[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Pausing(Schedule):
    """`schedule`, but for rows that are paused: those draft nothing, and rest."""

    schedule: Schedule

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.schedule.lengths

    @property
    def reads_law(self) -> bool:
        """As of `schedule`."""
        return self.schedule.reads_law

    @property
    def reads_confidence(self) -> bool:
        """As of `schedule`."""
        return self.schedule.reads_confidence

    def check(self) -> None:
        self.schedule.check()

    def init(self, batch):
        return PausingState(self.schedule.init(batch), jnp.zeros(batch, jnp.bool_))

    def limit(self, state: PausingState, able):
        return jnp.where(state.paused, 0, self.schedule.limit(state.schedule, able & ~state.paused))

    def trusts(self, state: PausingState, survival):
        return self.schedule.trusts(state.schedule, survival)

    def submits(self, state: PausingState, law):
        return self.schedule.submits(state.schedule, law)

    def goes_on(self, state: PausingState, log_prob):
        return self.schedule.goes_on(state.schedule, log_prob)

    def observe(self, state: PausingState, submitted, accepted, live):
        own = self.schedule.observe(state.schedule, submitted, accepted, live & ~state.paused)
        rested = self.schedule.rest(own, submitted, accepted, live & state.paused)
        return PausingState(rested, state.paused)
