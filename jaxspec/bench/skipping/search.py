"""Which blocks to skip: one after the other, following the few best sets (a beam), then by exchange.

Zhang et al. 2309.08168 (Draft & Verify) search with Bayesian optimisation. This search draws nothing at random. A
measurement is a pass over the texts, so most are saved: what one block took of the acceptance when it was last looked
at mostly holds, or grows, when others are skipped too, so only those blocks that promise most by their old figures are
measured again, until they keep their promises.
"""

import dataclasses
from collections.abc import Callable, Mapping

ATTENTION, MLP = "attention", "mlp"
Block = tuple[str, int]
Blocks = frozenset[Block]

# Steps in vain before the search turns back to the best set.
_PATIENCE = 4
# Sets of equally many blocks that are followed up.
_SETS = 3
# Blocks that are tried besides those of a set: the ones that promise most.
_TRIED = 3


@dataclasses.dataclass(frozen=True)
class Found:
    """The best set that was measured.

    Attributes:
      skipped: the blocks, one at least.
      acceptance: the chance that a draft without them is accepted.
      cost: of a draft step, in steps of the target.
      speedup: what they promise.
      measured: how many sets were measured.
    """

    skipped: Blocks
    acceptance: float
    cost: float
    speedup: float
    measured: int


class _SpentError(Exception):
    """No measurement is left."""


class _Measured:
    """The sets that were measured, and what they promise."""

    def __init__(self, measure, costs, speedup, limit, tell):
        self._measure, self._costs, self._speedup, self._limit, self._tell = measure, costs, speedup, limit, tell
        self.acceptances: dict[Blocks, float] = {}

    def cost(self, skipped: Blocks) -> float:
        return 1.0 - sum(self._costs[block] for block in sorted(skipped))

    def acceptance(self, skipped: Blocks) -> float:
        if not skipped:
            return 1.0
        if skipped not in self.acceptances:
            if len(self.acceptances) == self._limit:
                raise _SpentError
            self.acceptances[skipped] = self._measure(skipped)
            self._tell(self.best())
        return self.acceptances[skipped]

    def promise(self, skipped: Blocks, acceptance: float) -> float:
        return self._speedup(acceptance, self.cost(skipped))

    def speedup(self, skipped: Blocks) -> float:
        return self.promise(skipped, self.acceptance(skipped))

    def best(self) -> Found:
        """Of sets that promise the same, the cheapest."""
        worth = {skipped: self.speedup(skipped) for skipped in self.acceptances}
        best = max(worth, key=lambda skipped: (worth[skipped], -self.cost(skipped)))
        return Found(best, self.acceptances[best], self.cost(best), worth[best], len(self.acceptances))


def search(
    measure: Callable[[Blocks], float],
    costs: Mapping[Block, float],
    speedup: Callable[[float, float], float],
    *,
    limit: int,
    tell: Callable[[Found], None] = lambda _: None,
) -> Found:
    """Finds a set of blocks whose draft promises the largest speed-up.

    Args:
      measure: the chance that a draft without these blocks is accepted; of no blocks it is 1.
      costs: of each block that may be skipped, its share of a step of the target.
      speedup: what an acceptance and the cost of a draft step promise.
      limit: the most measurements.
      tell: is told of the best set so far after each.

    Returns:
      The best of all sets that were measured, even if it promises less than skipping nothing.

    Raises:
      ValueError: there are not two layers' attention to choose from, or `limit` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if sum(kind == ATTENTION for kind, _ in costs) < 2:
        raise ValueError("a draft keeps the attention of one layer at least, so the target must have two layers")
    measured = _Measured(measure, costs, speedup, limit, tell)
    try:
        shares = {block: measured.acceptance(frozenset([block])) for block in sorted(costs)}
        _widen(measured, shares)
        while _exchange(measured, shares, measured.best()):
            pass
    except _SpentError:
        pass
    return measured.best()


def _others(shares: Mapping[Block, float], skipped: Blocks) -> list[Block]:
    """What may be skipped besides: never the last attention."""
    attending = sum(kind == ATTENTION for kind, _ in shares.keys() - skipped)
    return [block for block in sorted(shares.keys() - skipped) if block[0] != ATTENTION or attending > 1]


def _widen(measured: _Measured, shares: dict[Block, float]) -> None:
    """Skips one block more at a time, of several sets, until so many steps have not improved on the best set.

    Args:
      measured: takes in what is seen on the way.
      shares: of each block the part of the acceptance that was left when it was last skipped; kept up to date.
    """
    sets, in_vain, best = [frozenset()], 0, 0.0
    while sets and in_vain < _PATIENCE:
        larger = {skipped | {block} for skipped in sets for block in _next(measured, shares, skipped)}
        # In an order that does not depend on how sets are hashed.
        sets = sorted(sorted(larger, key=sorted), key=measured.speedup, reverse=True)[:_SETS]
        speedup = max(map(measured.speedup, sets), default=0.0)
        in_vain = 0 if speedup > best else in_vain + 1
        best = max(best, speedup)


def _next(measured: _Measured, shares: dict[Block, float], skipped: Blocks) -> list[Block]:
    """The blocks that promise most by a measurement beside those that are skipped."""
    acceptance, fresh = measured.acceptance(skipped), set()
    while acceptance > 0:
        ranked = _ranked(measured, shares, skipped, _others(shares, skipped))[:_TRIED]
        stale = [block for block in ranked if block not in fresh]
        if not stale:
            return ranked
        shares[stale[0]] = measured.acceptance(skipped | {stale[0]}) / acceptance
        fresh.add(stale[0])
    return []


def _exchange(measured: _Measured, shares: Mapping[Block, float], best: Found) -> bool:
    """Tries the best set with one more block, without each of its own, and with another in its place.

    Returns:
      Whether a better one was found.
    """
    for fewer in (best.skipped, *(best.skipped - {block} for block in sorted(best.skipped))):
        others = [block for block in _others(shares, fewer) if block not in best.skipped]
        sets = [fewer] if fewer else []
        sets += [fewer | {block} for block in _ranked(measured, shares, fewer, others)[:_TRIED]]
        if any(measured.speedup(skipped) > best.speedup for skipped in sets):
            return True
    return False


def _ranked(measured: _Measured, shares: Mapping[Block, float], skipped: Blocks, others: list[Block]) -> list[Block]:
    """Blocks to skip besides, those first that promise most by what they took when they were last looked at."""
    acceptance = measured.acceptance(skipped)
    return sorted(others, key=lambda one: -measured.promise(skipped | {one}, acceptance * shares[one]))
