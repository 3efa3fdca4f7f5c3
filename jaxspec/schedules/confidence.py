"""Stop after a draft that was unlikely, and keep it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxspec import checks
from jaxspec.pytree import register_dataclass
from jaxspec.schedules.base import Schedule


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ConfidenceStop(Schedule):
    """Drafts nothing after a token whose draft probability was below `threshold`; that token stays.

    The assisted-generation rule of Hugging Face Transformers (`assistant_confidence_threshold`).
    It looks at the drawn token, so it may only decide about later ones: dropping the token itself
    would change what is emitted.

    Attributes:
      lengths: numbers of drafts that verification is compiled for, rising; an integer `k` is up to
        `k` drafts and stands for 2, 4, 8, ... and `k`.
      threshold: in [0, 1], traced; 0 always goes on.
    """

    lengths: tuple[int, ...] | int = dataclasses.field(default=8, metadata={"static": True})
    threshold: float | Array = 0.4

    reads_law: ClassVar[bool] = True

    def __post_init__(self):
        # A round drafts at least one token, so there is no branch for none.
        object.__setattr__(self, "lengths", checks.draft_lengths(self.lengths, smallest=1))

    def check(self) -> None:
        checks.threshold("ConfidenceStop", self.threshold)

    def goes_on(self, state, log_prob):
        return log_prob >= jnp.log(self.threshold)
