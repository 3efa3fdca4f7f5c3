"""Orders requests that wait for a slot."""

import bisect
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

_Job = TypeVar("_Job")

# Later requests after which one that waits counts as one of the next higher priority.
_AGEING = 1000


class Waiting(Generic[_Job]):
    """Holds requests by priority and age. The caller locks it.

    Example:
        >>> from jaxspec.serving.waiting import Waiting
        >>> waiting = Waiting()
        >>> for job, priority in (("a", 1), ("b", 0), ("c", 1)):
        ...     waiting.add(job, priority)
        >>> list(waiting)
        ['b', 'a', 'c']
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, _Job]] = []
        self._numbers = itertools.count()

    def add(self, job: _Job, priority: int) -> None:
        """Adds a request; those with a smaller priority come first, and move up with age."""
        number = next(self._numbers)
        bisect.insort(self._entries, (priority * _AGEING + number, number, job))

    def remove(self, job: _Job) -> None:
        """Removes a request."""
        del self._entries[next(place for place, entry in enumerate(self._entries) if entry[2] is job)]

    def clear(self) -> list[_Job]:
        """Removes all requests, and returns them."""
        jobs, self._entries = list(self), []
        return jobs

    def __iter__(self) -> Iterator[_Job]:
        return (job for _, _, job in list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
