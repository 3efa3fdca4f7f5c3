"""Pauses another draft length in rows for which something else drafts."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.base import DraftLength


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PausingState:
    """Holds the inner draft length's state, and which rows draft nothing this round, set by the caller before it."""

    inner: Any
    paused: Bool[Array, "b"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Pausing(DraftLength):
    """Decides as `inner` does, except for paused rows, which draft nothing and rest.

    Attributes:
      inner: the draft length of the other rows.
    """

    inner: DraftLength
    lengths: tuple[int, ...] = dataclasses.field(init=False, repr=False)
    reads_log_probs: bool = dataclasses.field(init=False, repr=False)
    reads_confidence: bool = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("lengths", "reads_log_probs", "reads_confidence"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def check(self) -> None:
        self.inner.check()

    def init(self, batch: int) -> PausingState:
        return PausingState(self.inner.init(batch), jnp.zeros(batch, jnp.bool_))

    def longest(self, state: PausingState, able: Bool[Array, "b"]) -> Int[Array, "b"]:
        return jnp.where(state.paused, 0, self.inner.longest(state.inner, able & ~state.paused))

    def should_verify(self, state: PausingState, cum_accept_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        return self.inner.should_verify(state.inner, cum_accept_prob)

    def should_draft(self, state: PausingState, log_probs: Float[Array, "b v"]) -> Bool[Array, "b"]:
        return self.inner.should_draft(state.inner, log_probs)

    def continue_(self, state: PausingState, log_prob: Float[Array, "b"]) -> Bool[Array, "b"]:
        return self.inner.continue_(state.inner, log_prob)

    def observe(
        self, state: PausingState, submitted: Int[Array, "b"], accepted: Int[Array, "b"], live: Bool[Array, "b"]
    ) -> PausingState:
        own = self.inner.observe(state.inner, submitted, accepted, live & ~state.paused)
        rested = self.inner.rest(own, submitted, accepted, live & state.paused)
        return PausingState(rested, state.paused)
