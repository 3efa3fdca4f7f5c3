"""Predicts the speed-up from what is accepted and what it costs: arithmetic alone.

For one row it is the theorem of Leviathan et al. with measured counts and times in place of one chance `a` for every
draft and one cost `c` for every draft step:

    theorem   (1 - a^(k + 1)) / (1 - a)            over    k c + 1
    here      1 + accepted_1 + ... + accepted_k    over    round(k), or idle where nothing was drafted

References:
  Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2022), arXiv 2211.17192,
  theorem 3.8.
"""

import dataclasses
import math
from collections.abc import Sequence

from jaxspec.bench.plan.acceptance import Acceptance, Answer
from jaxspec.bench.questions import Group
from jaxspec.bench.rounds import RoundCost


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The gain of decoding with one case.

    Attributes:
      batch: rows.
      case: its label.
      k: drafts a round.
      round_gain: tokens of a round, all rows together, over those of a step of plain decoding.
      round_cost: a round's time in steps of plain decoding.
    """

    batch: int
    case: str
    k: int
    round_gain: float
    round_cost: float

    @property
    def speedup(self) -> float:
        """Over plain decoding, the prompts' time left out."""
        return self.round_gain / self.round_cost


def predict(
    acceptance: Acceptance, groups: Sequence[Group], *, case: str, k: int, batch: int, cost: RoundCost
) -> Prediction:
    """Predicts batches of answers, each of which goes on until its last row has ended.

    Rows are taken to find something to draft independently of each other.

    Args:
      acceptance: a drafter's, with at least `k` drafts.
      groups: the questions that are asked together.
      case: the label.
      k: drafts a round.
      batch: rows.
      cost: of a round of `k` drafts in this batch.

    Raises:
      ValueError: `k` is more than was measured.
    """
    if k > acceptance.k:
        raise ValueError(f"acceptance was measured with k={acceptance.k}, got k={k}; measure it with the largest k")
    known = {(one.question, one.turn): one for one in acceptance.answers}
    turns = sorted({one.turn for one in acceptance.answers})
    tokens = steps = rounds = seconds = 0.0
    for group in groups:
        for turn in turns:
            rows = [known[index, turn] for index in group.members if (index, turn) in known]
            if not rows:
                continue
            took = max(one.rounds_at(k) for one in rows)
            tokens += sum(one.tokens for one in rows)
            steps += max(one.tokens for one in rows)
            rounds += took
            seconds += took * _round_cost(rows, cost)
    return Prediction(batch, case, k, (tokens / rounds) / (tokens / steps), seconds / rounds)


def _round_cost(rows: Sequence[Answer], cost: RoundCost) -> float:
    """Returns a round's cost: its drafts' time where any row drafts; the same question twice drafts twice at once."""
    if cost.idle is None:
        return cost.round
    different = {(one.question, one.turn): one for one in rows}.values()
    silent = math.prod(1.0 - one.drafting for one in different)
    return silent * cost.idle + (1.0 - silent) * cost.round
