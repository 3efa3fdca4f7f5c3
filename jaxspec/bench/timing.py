"""Times cases on machines that drift: cases take turns, and ratios are taken turn by turn."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

# Tells the time in seconds.
clock = time.perf_counter


@dataclasses.dataclass(frozen=True)
class Samples:
    """Seconds of each case, in the order of the turns."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Returns the median seconds of a case."""
        return statistics.median(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> tuple[float, float, float]:
        """Returns the least, median and largest ratio of two cases, each taken within one turn."""
        pairs = zip(self.seconds[numerator], self.seconds[denominator], strict=True)
        ratios = sorted(first / second for first, second in pairs)
        return ratios[0], statistics.median(ratios), ratios[-1]


def interleave(cases: Mapping[str, Callable[[], Any]], *, repeats: int, warm_up: int = 1) -> Samples:
    """Runs the cases in turn, `repeats` times over, after `warm_up` turns that do not count.

    A case returns its arrays, which are waited for.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warm_up + repeats):
        for name, case in cases.items():
            start = clock()
            jax.block_until_ready(case())
            end = clock()
            if turn >= warm_up:
                seconds[name].append(end - start)
    return Samples(seconds)
