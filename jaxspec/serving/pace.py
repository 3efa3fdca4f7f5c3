"""Chooses the number of rounds of a turn, so that handing out text takes a small share of the time."""

from collections.abc import Hashable

# The number of rounds of a turn whose time is not known yet.
_FIRST = 4
# The weight of the newest turn in the mean time of a round.
_RATE = 0.25


class Pace:
    """Holds the mean time of rounds of several kinds.

    Example:
        >>> from jaxspec.serving.pace import Pace
        >>> pace = Pace(seconds=0.05, most=16)
        >>> pace.ran("one row", rounds=4, seconds=0.02)
        >>> pace.rounds("one row"), pace.rounds("eight rows")
        (10, 4)
    """

    def __init__(self, seconds: float, most: int) -> None:
        """Takes the time that a turn should take, and the largest number of rounds."""
        self._seconds, self._most = seconds, most
        self._means: dict[Hashable, float] = {}

    def rounds(self, kind: Hashable) -> int:
        """Returns the number of rounds to run, at least 1."""
        if kind not in self._means:
            return min(_FIRST, self._most)
        return max(1, min(self._most, int(self._seconds / max(self._means[kind], 1e-9))))

    def ran(self, kind: Hashable, rounds: int, seconds: float) -> None:
        """Records the time of a turn of this many rounds."""
        if rounds > 0:
            new, old = seconds / rounds, self._means.get(kind)
            self._means[kind] = new if old is None else old + _RATE * (new - old)
