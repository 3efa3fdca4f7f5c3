"""A difference of two sides over the same questions, and whether it is noise: one rule, at a stated level."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

# How often equal sides are said to differ.
LEVEL = 0.01
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Compared:
    """One figure of plain decoding and of another side.

    Attributes:
      plain: its figure.
      other: the other's.
      difference: of `other` from `plain`, in the figure's own measure or another's.
      error: the standard error of the difference; `None` for a single question.
      low: where the interval of the difference begins that has the truth in all but `LEVEL` of such runs, or `None`.
      high: where it ends, or `None`.
      questions: over how many it was taken.
    """

    plain: float
    other: float
    difference: float
    error: float | None
    low: float | None
    high: float | None
    questions: int

    @property
    def within_noise(self) -> bool | None:
        """Whether no difference is in the interval; `None` where a single question cannot tell."""
        return None if self.error is None else self.low <= 0 <= self.high


def compare_perplexity(plain: Sequence[float], other: Sequence[float]) -> Compared:
    """Perplexities from the mean negative log-likelihood of each question's tokens, in nats; Student's t, in pairs.

    The difference and its interval are of the negative log-likelihood, whose mean over questions has a perplexity as
    its exponential.
    """
    differences = [second - first for first, second in zip(plain, other, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    values = [math.exp(statistics.fmean(side)) for side in (plain, other)]
    if count == 1:
        return Compared(*values, mean, None, None, None, 1)
    error = statistics.stdev(differences) / math.sqrt(count)
    reach = error * float(student.ppf(1 - LEVEL / 2, count - 1))
    return Compared(*values, mean, error, mean - reach, mean + reach, count)


def compare_corpora(plain: Sequence[Any], other: Sequence[Any], figure: Callable[[Sequence[Any]], float]) -> Compared:
    """Figures of whole corpora, by the bootstrap over questions: both sides are drawn anew together.

    Args:
      plain: what `figure` takes of each question.
      other: the same of the other side.
      figure: one number of many questions.
    """
    count, values = len(plain), (figure(plain), figure(other))
    difference = values[1] - values[0]
    if count == 1:
        return Compared(*values, difference, None, None, None, 1)
    drawn = []
    for places in np.random.default_rng(0).integers(count, size=(_RESAMPLES, count)).tolist():
        drawn.append(figure([other[i] for i in places]) - figure([plain[i] for i in places]))
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2]).tolist()
    return Compared(*values, difference, float(np.std(drawn, ddof=1)), low, high, count)
