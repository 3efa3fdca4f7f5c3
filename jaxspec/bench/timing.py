"""Times cases on machines whose speed drifts: cases take turns, and ratios are computed turn by turn."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

# Returns the time in seconds.
clock = time.perf_counter


@dataclasses.dataclass(frozen=True)
class Spread:
    """Holds the minimum, median and maximum over turns."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Returns the spread of at least one value."""
        values = sorted(map(float, values))
        return cls(values[0], statistics.median(values), values[-1])

    @classmethod
    def of_ratios(cls, over: Iterable[float], under: Iterable[float]) -> "Spread":
        """Returns the spread of ratios computed turn by turn."""
        return cls.of(a / b for a, b in zip(over, under, strict=True))


@dataclasses.dataclass(frozen=True)
class Samples:
    """Holds the seconds of each case, in the order of the turns, and its last result."""

    seconds: dict[str, list[float]]
    results: dict[str, Any]

    def median(self, name: str) -> float:
        """Returns the median seconds of a case."""
        return statistics.median(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> Spread:
        """Returns the spread of the ratio of two cases, computed within each turn."""
        return Spread.of_ratios(self.seconds[numerator], self.seconds[denominator])


def interleave(cases: Mapping[str, Callable[[], Any]], *, repeats: int, warm_up: int = 1) -> Samples:
    """Times the cases in turn, `repeats` times, after `warm_up` turns that do not count.

    A case returns its arrays; its time ends when they are ready.
    """
    samples = Samples({name: [] for name in cases}, {})
    for turn in range(warm_up + repeats):
        for name, case in cases.items():
            start = clock()
            samples.results[name], end = jax.block_until_ready(case()), clock()
            if turn >= warm_up:
                samples.seconds[name].append(end - start)
    return samples
