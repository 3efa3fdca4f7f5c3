"""Describes the outcomes of a verifier's round: conditions on its uniforms, and the next token."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np


class Comparison(NamedTuple):
    """States whether the uniform with this index lies below the threshold.

    Example:
      >>> jaxspec.testing.Comparison(0, 0.25, below=False).interval()
      (0.25, 1.0)
    """

    uniform: int
    threshold: float
    below: bool

    def interval(self) -> tuple[float, float]:
        """Returns the interval of the uniform."""
        return (0.0, self.threshold) if self.below else (self.threshold, 1.0)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Describes one outcome of a round for given drafts. The leaves of a round are exclusive and exhaustive.

    Attributes:
      comparisons: conditions on the uniforms; a uniform may be compared more than once.
      path: accepted nodes, in order.
      next_probs: distribution of the token after them, `[v]`.

    Example:
      >>> below = jaxspec.testing.Comparison(0, 0.25, below=True)
      >>> jaxspec.testing.Leaf((below,), (0,), np.array([0.5, 0.5])).chance()
      0.25
    """

    comparisons: tuple[Comparison, ...]
    path: tuple[int, ...]
    next_probs: np.ndarray

    def chance(self) -> float:
        """Returns the probability of the leaf if nothing is known about the uniforms."""
        intervals: dict[int, tuple[float, float]] = {}
        for comparison in self.comparisons:
            low, high = intervals.get(comparison.uniform, (0.0, 1.0))
            at_least, below = comparison.interval()
            intervals[comparison.uniform] = max(low, at_least), min(high, below)
        return math.prod((max(high - low, 0.0) for low, high in intervals.values()), start=1.0)
