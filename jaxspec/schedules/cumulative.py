"""Stop before a draft that a confidence head expects to be rejected."""

import dataclasses
from typing import ClassVar

from jax import Array

from jaxspec import checks
from jaxspec.pytree import register_dataclass
from jaxspec.schedules.base import Schedule


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CumulativeConfidence(Schedule):
    """Submits drafts for as long as the chance that all of them are accepted is at least `threshold`.

    The chance is the product of the drafter's own estimates, one a draft, each made before the draft is drawn (DSpark,
    section 3.2). For drafters with a confidence head.

    Attributes:
      lengths: numbers of drafts that verification is compiled for, rising; an integer `k` is up to `k` drafts and
        stands for 0, 2, 4, 8, ... and `k`.
      threshold: in [0, 1], traced; 0 submits all.
    """

    lengths: tuple[int, ...] | int = dataclasses.field(default=7, metadata={"static": True})
    threshold: float | Array = 0.3

    reads_confidence: ClassVar[bool] = True

    def __post_init__(self):
        object.__setattr__(self, "lengths", checks.draft_lengths(self.lengths))

    def check(self) -> None:
        checks.threshold("CumulativeConfidence", self.threshold)

    def trusts(self, state, survival):
        return survival >= self.threshold
