"""Divides the cube of uniforms into boxes in which a function is constant."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Point = tuple[float, ...]

PRECISION = 1e-6  # of a threshold
_POINTS = 48  # initial points
_MOST_CELLS = 300
_PAIRS = 3  # pairs of points searched for a place to split a box
_ROUNDS = 50  # of refinement


class NotPartitionedError(ValueError):
    """Reports a function that is not piecewise constant on a few hundred boxes."""


@dataclasses.dataclass
class Cell:
    """Holds a box of the cube, and the results of the function at some points in it.

    Attributes:
      low: lowest corner.
      high: highest corner.
      results: result at each point; all are equal once the partition is complete.
      narrow: whether the box has several results but is too narrow to split.
    """

    low: Point
    high: Point
    results: dict[Point, Any]
    narrow: bool = False

    @property
    def volume(self) -> float:
        """Probability that uniforms lie in the box."""
        return math.prod((high - low for low, high in zip(self.low, self.high, strict=True)), start=1.0)

    @property
    def center(self) -> Point:
        """Point in the middle."""
        return tuple((low + high) / 2 for low, high in zip(self.low, self.high, strict=True))

    @property
    def result(self) -> Any:
        """Value of the function."""
        return next(iter(self.results.values()))

    @property
    def unanimous(self) -> bool:
        """Whether all points have the same result."""
        return len(set(self.results.values())) == 1

    def split(self, axis: int, at: float) -> tuple["Cell", "Cell"]:
        """Returns the parts below and above a threshold, each with its points."""
        below = {point: result for point, result in self.results.items() if point[axis] < at}
        above = {point: result for point, result in self.results.items() if point[axis] >= at}
        return Cell(self.low, put(self.high, axis, at), below), Cell(put(self.low, axis, at), self.high, above)


def put(point: Point, axis: int, value: float) -> Point:
    """Returns the point with another value along an axis."""
    return (*point[:axis], value, *point[axis + 1 :])


def partition(
    function: Callable[[Point], Any], axes: int, rng: np.random.Generator, *, checks: int, known: list[list[float]]
) -> list[Cell]:
    """Partitions the cube `[0, 1)^axes` into boxes on which a step function is constant.

    Two points with different results are joined by a path along the axes. Where the result changes on it, bisection
    finds a threshold, and the box is split there. Thresholds of other boxes, and random points, then check each box.

    Args:
      function: function from a point to a comparable result.
      axes: number of uniforms.
      rng: generator that chooses the points.
      checks: number of random points that the boxes must agree with.
      known: for each axis, thresholds found for similar functions, which are tried first; new ones are added.

    Raises:
      NotPartitionedError: if the function has hundreds of cells, is not a step function, or draws random numbers.
    """
    search = _Search(function, rng, known)
    cells = search.divide([Cell((0.0,) * axes, (1.0,) * axes, search.ask(spread(rng, _POINTS, axes)))])
    for _ in range(_ROUNDS):
        wrong = search.unlike(cells) or search.contradicted(cells, spread(rng, checks, axes))
        if not wrong:
            return cells
        kept = [cell for cell in cells if all(cell is not other for other in wrong)]
        cells = kept + search.divide(wrong, most=_MOST_CELLS - len(kept))
    raise NotPartitionedError(f"random points contradict {len(cells)} cells after {_ROUNDS} refinements")


def spread(rng: np.random.Generator, count: int, axes: int) -> list[Point]:
    """Returns `count` random points, one in each of `count` equal intervals along every axis."""
    strata = rng.permuted(np.tile(np.arange(count), (axes, 1)), axis=1)
    return list(map(tuple, ((strata + rng.random((axes, count))) / count).T.tolist())) if axes else [()]


@dataclasses.dataclass
class _Search:
    function: Callable[[Point], Any]
    rng: np.random.Generator
    known: list[list[float]]

    def ask(self, points: list[Point]) -> dict[Point, Any]:
        return {point: self.function(point) for point in points}

    def divide(self, pending: list[Cell], most: int = _MOST_CELLS) -> list[Cell]:
        """Splits boxes until the points in each agree."""
        done: list[Cell] = []
        while pending:
            cell = pending.pop()
            self._fill(cell)
            found = None if cell.unanimous else self._threshold(cell)
            if found is None and not cell.unanimous:
                cell.narrow = True
                done.append(cell)
            elif found is None:
                self._look_at_faces(cell)
                (done if cell.unanimous else pending).append(cell)
            else:
                pending += cell.split(*found)
            if len(done) + len(pending) > most:
                raise NotPartitionedError(f"the uniforms have more than {_MOST_CELLS} cells with different results")
        return done

    def unlike(self, cells: list[Cell]) -> list[Cell]:
        """Returns the boxes that the threshold of another box or of a similar function also divides."""
        wrong = []
        for cell in cells:
            for axis, thresholds in enumerate(self.known):
                low, high = cell.low[axis], cell.high[axis]
                inside = [low, *(at for at in sorted(thresholds) if low + PRECISION < at < high - PRECISION), high]
                middles = [(below + above) / 2 for below, above in itertools.pairwise(inside)]
                points = [put(cell.center, axis, value) for value in middles] if len(middles) > 1 else []
                cell.results |= self.ask([point for point in points if point not in cell.results])
            if not cell.unanimous and not cell.narrow:
                wrong.append(cell)
        return wrong

    def contradicted(self, cells: list[Cell], points: list[Point]) -> list[Cell]:
        """Returns the boxes where a point has another result, with that point added."""
        at = np.array(points)[:, None]
        low, high = np.array([cell.low for cell in cells]), np.array([cell.high for cell in cells])
        # Points closer to a threshold than its precision are ignored.
        inside: Any = np.all((at > low + PRECISION * (low > 0)) & (at < high - PRECISION * (high < 1)), axis=2).tolist()
        wrong: dict[int, Cell] = {}
        for point, each in zip(points, inside, strict=True):
            if True in each:
                cell = cells[each.index(True)]
                result = self.function(point)
                if result != cell.result and not cell.narrow:
                    cell.results[point] = result
                    wrong[id(cell)] = cell
        return list(wrong.values())

    def _fill(self, cell: Cell) -> None:
        """Adds points to a box that has too few to be trusted."""
        axes = len(cell.low)
        lacking = axes + 3 - len(cell.results)
        if lacking > 0:
            cell.results |= self.ask(self._within(cell, lacking))

    def _look_at_faces(self, cell: Cell) -> None:
        """Adds points close to where the box was split, to detect thresholds that are not straight."""
        for axis, (low, high) in enumerate(zip(cell.low, cell.high, strict=True)):
            near = [low + 2 * PRECISION] * (low > 0) + [high - 2 * PRECISION] * (high < 1)
            points = [put(point, axis, value) for point, value in zip(self._within(cell, 2), near, strict=False)]
            cell.results |= self.ask([point for point in points if low < point[axis] < high])

    def _within(self, cell: Cell, count: int) -> list[Point]:
        low, size = np.array(cell.low), np.array(cell.high) - np.array(cell.low)
        return list(map(tuple, (low + size * np.array(spread(self.rng, count, low.size))).tolist()))

    def _threshold(self, cell: Cell) -> tuple[int, float] | None:
        """Returns the axis and position of a threshold in a box; of several, that on the first axis."""
        found: list[tuple[int, Point, Point]] = []
        points = list(cell.results)
        start = points[0]
        others = [point for point in points if cell.results[point] != cell.results[start]]
        for other in itertools.islice(others, _PAIRS):
            found.append(self._change(cell, start, other))
        axis, below, above = min(found)
        if below[axis] > above[axis]:
            below, above = above, below
        at = self._bisect(axis, below, above)
        # A box between two thresholds as close as their precision is not split.
        return (axis, at) if cell.low[axis] + PRECISION < at < cell.high[axis] - PRECISION else None

    def _change(self, cell: Cell, start: Point, end: Point) -> tuple[int, Point, Point]:
        """Walks from one point to the other along the axes, up to the first step that changes the result."""
        here = start
        for axis in range(len(start)):
            there = put(here, axis, end[axis])
            if there not in cell.results:
                cell.results[there] = self.function(there)
            if cell.results[there] != cell.results[start]:
                return axis, here, there
            here = there
        raise NotPartitionedError("the result differs where the uniforms are equal")

    def _bisect(self, axis: int, below: Point, above: Point) -> float:
        low, high, result = below[axis], above[axis], self.function(below)
        at = lambda value: self.function(put(below, axis, value))  # noqa: E731
        for guess in self.known[axis]:
            if low + PRECISION < guess < high - PRECISION:
                if at(guess - PRECISION / 2) != result:
                    high = guess - PRECISION / 2
                elif at(guess + PRECISION / 2) == result:
                    low = guess + PRECISION / 2
                else:
                    return guess
        while high - low > PRECISION:
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle) == result else (low, middle)
        self.known[axis].append((low + high) / 2)
        return (low + high) / 2
