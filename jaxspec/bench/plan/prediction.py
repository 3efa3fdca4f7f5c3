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

from jaxspec.bench.cases import Case
from jaxspec.bench.costs import RoundCost
from jaxspec.bench.questions import Group
from jaxspec.bench.records import group_by


@dataclasses.dataclass(frozen=True)
class Answer:
    """Holds the rounds of one answer.

    Attributes:
      question: index of the question.
      turn: of its conversation.
      prompt_tokens: before the answer.
      tokens: new ones.
      rounds: that gave them.
      drafted_at: rounds that submitted a draft at each position.
      accepted_at: rounds that accepted it.
    """

    question: int
    turn: int
    prompt_tokens: int
    tokens: int
    rounds: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    def rounds_at(self, k: int) -> float:
        """Returns how many rounds of at most `k` drafts would give these tokens.

        A round gives one token more than it accepts drafts; the first `k` are taken to be accepted as often as they
        were. At as many drafts as were measured it is the rounds that were.
        """
        return self.rounds * (self.rounds + sum(self.accepted_at)) / (self.rounds + sum(self.accepted_at[:k]))


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Holds a drafter's answers to all questions.

    Attributes:
      name: the drafter's.
      k: the most drafts of a round.
      answers: one for each turn.
    """

    name: str
    k: int
    answers: tuple[Answer, ...]

    @property
    def rounds(self) -> int:
        """The rounds of all answers."""
        return sum(one.rounds for one in self.answers)

    @property
    def drafting(self) -> float:
        """The share of rounds that drafted anything."""
        return sum(one.drafted_at[0] for one in self.answers) / self.rounds

    @property
    def accepted_at(self) -> tuple[float, ...]:
        """The share of rounds that accepted the draft at each position."""
        return tuple(sum(place) / self.rounds for place in zip(*(one.accepted_at for one in self.answers), strict=True))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicts the gain of decoding with one case.

    Attributes:
      batch: rows.
      case: its label.
      k: drafts a round.
      cost: of rounds with drafts and without, as measured.
      round_gain: tokens of a round, all rows together, over those of a step of plain decoding.
      round_cost: a round's time in steps of plain decoding.
    """

    batch: int
    case: str
    k: int
    cost: RoundCost
    round_gain: float
    round_cost: float

    @property
    def drafting(self) -> float:
        """The share of rounds in which any row drafts."""
        idle = self.cost.idle
        if idle is None or idle == self.cost.round:
            return 1.0
        return (self.round_cost - idle) / (self.cost.round - idle)

    @property
    def speedup(self) -> float:
        """Over plain decoding, the prompts' time left out."""
        return self.round_gain / self.round_cost


def predict(acceptance: Acceptance, groups: Sequence[Group], case: Case, cost: RoundCost) -> Prediction:
    """Predicts batches of answers, each of which goes on until its last row has ended.

    Rows are taken to find something to draft independently of each other.

    Args:
      acceptance: the drafter's, with at least as many drafts.
      groups: the questions that are asked together.
      case: the drafter, at its number of drafts.
      cost: of its rounds in such batches.

    Raises:
      ValueError: it drafts more than was measured.
    """
    k = case.drafter.max_drafts
    if k > acceptance.k:
        raise ValueError(f"acceptance was measured with k={acceptance.k}, got k={k}; measure it with the largest k")
    turns = group_by(acceptance.answers, lambda one: one.turn)
    tokens = steps = rounds = time = 0.0
    for group in groups:
        for several in turns.values():
            answers = {one.question: one for one in several if one.question in group.members}
            rows = [answers[index] for index in group.members if index in answers]
            took = max((one.rounds_at(k) for one in rows), default=0.0)
            tokens += sum(one.tokens for one in rows)
            steps += max((one.tokens for one in rows), default=0)
            rounds += took
            # Drafts take time where any row drafts; the same question twice drafts twice at once.
            silent = math.prod(1.0 - one.drafted_at[0] / one.rounds for one in answers.values())
            idle = cost.round if cost.idle is None else cost.idle
            time += took * (silent * idle + (1.0 - silent) * cost.round)
    return Prediction(len(groups[0].members), case.label, k, cost, (tokens / rounds) / (tokens / steps), time / rounds)
