"""One way a verifier's round can end: what its uniforms must be for it, and what follows."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np


class Comparison(NamedTuple):
    """The uniform with this index lies below the threshold, or it does not."""

    uniform: int
    threshold: float
    below: bool

    def interval(self) -> tuple[float, float]:
        """Where the uniform lies."""
        return (0.0, self.threshold) if self.below else (self.threshold, 1.0)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One end of a round for given drafts. A round's leaves exclude each other and are all there are.

    Attributes:
      comparisons: what must hold of the uniforms; one may be compared more than once.
      path: the accepted nodes, in order.
      next_probs: `[v]`, the distribution of the token after them.
    """

    comparisons: tuple[Comparison, ...]
    path: tuple[int, ...]
    next_probs: np.ndarray

    def chance(self) -> float:
        """How likely it is where nothing is known of the uniforms."""
        intervals: dict[int, tuple[float, float]] = {}
        for comparison in self.comparisons:
            low, high = intervals.get(comparison.uniform, (0.0, 1.0))
            at_least, below = comparison.interval()
            intervals[comparison.uniform] = max(low, at_least), min(high, below)
        return math.prod(max(high - low, 0.0) for low, high in intervals.values())
