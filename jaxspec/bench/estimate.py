"""Estimates a ratio of sums over clustered samples, and its standard error."""

import dataclasses
import math

import numpy as np
from jaxtyping import Int, Shaped


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Holds a figure and its standard error, `None` for a single cluster; the figure is NaN without samples."""

    value: float
    error: float | None = None

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        return f"{self.value:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")

    def as_record(self) -> dict[str, float | None]:
        """Returns it for JSON, which has no NaN."""
        if math.isnan(self.value):
            return {"value": None, "error": None}
        return {"value": self.value, "error": self.error}


def ratio(above: Shaped[np.ndarray, "n"], below: Shaped[np.ndarray, "n"], groups: Int[np.ndarray, "n"]) -> Estimate:
    """Estimates `sum(above) / sum(below)`, with the standard error between clusters by linearization.

    Args:
      above: `[n]` the terms of the numerator.
      below: `[n]` the terms of the denominator: weights, or ones for a mean.
      groups: `[n]` the cluster of each term, such as its text.
    """
    _, places = np.unique(groups, return_inverse=True)
    tops, bottoms = (np.bincount(places, weights=np.asarray(x, float)) for x in (above, below))
    total = bottoms.sum()
    if not total > 0:
        return Estimate(math.nan)
    value, count = float(tops.sum() / total), len(tops)
    if count < 2:
        return Estimate(value)
    residuals = tops - value * bottoms
    return Estimate(value, float(np.sqrt(count / (count - 1) * np.sum(residuals**2)) / total))
