"""Chooses the most probable paths, as many as are worth the time of verifying them: CaDDTree."""

import dataclasses
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxspec.core.tree import positive
from jaxspec.core.typed import check_fields
from jaxspec.core.validate import shown
from jaxspec.draft_length.costs import CostModel
from jaxspec.heads.dflash.constructions.base import best_first, submit
from jaxspec.heads.dflash.constructions.best_paths import BestPaths

# Verification is compiled for these shares of the largest number of nodes, and a round runs the smallest that fits.
_SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class BestPathsByCost(BestPaths):
    """Adds the most probable paths one after the other, until the next one costs more time than it gains.

    With `n` nodes, a round emits one token and the sum of the nodes' probabilities, as the head expects. A row stops
    before the first node that lowers this number divided by the time of the round.

    Attributes:
      times: pairs of a number of nodes and the time of a round with them, drafting included, in any unit. The first
        one is for 0 nodes, and numbers increase. Between them times are interpolated on the largest convex and rising
        curve below them, as in the paper. Verification is compiled for each number above 0.

    Raises:
      TypeError, ValueError: these are no such pairs, there are fewer than two, numbers do not increase from 0, or a
        time is not above 0.

    References:
      CaDDTree (2026), arXiv:2606.01813.

    Example:
      >>> from jaxspec.heads.dflash import BestPathsByCost, DFlashTreeDrafter
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> construction = BestPathsByCost(times=((0, 1.1), (4, 1.2), (8, 1.6)))
      >>> drafter = DFlashTreeDrafter(head, nodes=8, construction=construction)
      >>> drafter.lengths, jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      ((4, 8), (2, 8))
    """

    times: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        times: Any = self.times
        if isinstance(times, tuple | list):
            times = tuple(tuple(one) if isinstance(one, list) else one for one in times)
        object.__setattr__(self, "times", times)
        check_fields(self, "times")
        times = tuple((count, float(time)) for count, time in times)
        counts = [count for count, _ in times]
        for count in counts[1:]:
            positive("a number of nodes in times", count)
        if len(times) < 2 or counts[0] != 0 or any(a >= b for a, b in itertools.pairwise(counts)):
            raise ValueError(f"times must have increasing numbers of nodes from 0 on, got {shown(counts)}")
        if not all(0 < time < math.inf for _, time in times):
            raise ValueError(f"times of rounds must be above 0, got {shown([time for _, time in times])}")
        object.__setattr__(self, "times", times)

    @classmethod
    def of(cls, head, target, nodes):
        """Returns the construction with estimated times for one row of text."""
        counts = sorted({math.ceil(share * nodes) for share in _SHARES})
        model = CostModel(target)
        drafting = model.one_pass(head, head.config.num_drafts)
        # Every round drafts, also if no node is worth its time.
        none, *some = model.rounds(drafting, (0, *counts))
        return cls(((0, none + drafting.first), *zip(counts, some, strict=True)))

    def lengths(self, nodes):
        return (*(count for count, _ in self.times[1:] if count < nodes), nodes)

    def choose(self, edges, nodes, depth):
        found = self.candidates(edges, nodes, depth)
        chosen, scores = best_first(found, nodes)
        emitted = 1 + jnp.cumsum(jnp.pad(jnp.exp(scores), ((0, 0), (1, 0))), axis=1)
        rate = emitted / jnp.asarray(self.curve(nodes), jnp.float32)[None]
        worth = jnp.cumprod((rate[:, 1:] > rate[:, :-1]).astype(jnp.int32), axis=1).astype(jnp.bool_)
        return submit(found, chosen, worth & (scores > -jnp.inf), edges.places)

    def curve(self, nodes: int) -> Float[np.ndarray, "n_plus_1"]:
        """Returns the time of a round with 0 to `nodes` nodes; beyond the last known number it rises as before it."""
        counts, times = (np.array(x, np.float64) for x in zip(*self.times, strict=True))
        times = np.minimum.accumulate(times[::-1])[::-1]  # the largest rising curve below them
        corners = [0]
        for point in range(1, len(counts)):
            # A corner that is not below the line from the one before it to this point is no corner.
            while len(corners) > 1 and _slope(counts, times, *corners[-2:]) >= _slope(
                counts, times, corners[-1], point
            ):
                corners.pop()
            corners.append(point)
        last = _slope(counts, times, *corners[-2:])
        numbers = np.arange(nodes + 1)
        beyond = last * np.maximum(numbers - counts[-1], 0)
        return np.interp(numbers, counts[corners], times[corners]) + beyond


def _slope(counts: Float[np.ndarray, "n"], times: Float[np.ndarray, "n"], start: int, end: int) -> float:
    return float((times[end] - times[start]) / (counts[end] - counts[start]))
