"""Recommends what to use at each batch and says why, and finds the batch from which on nothing pays."""

import dataclasses
from collections.abc import Mapping

from jaxspec.bench.advice import describe_speedup
from jaxspec.bench.cases import Case
from jaxspec.bench.plan.prediction import Acceptance, Prediction
from jaxspec.bench.summary import Summary

# Where fewer of the first drafts are accepted, it is the guesses that are bad.
_FEW_ACCEPTED = 0.4


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """Gives the recommendation for one batch.

    Attributes:
      speculate: whether to use a drafter at all.
      drafter: its name; "none" for plain decoding.
      k: drafts a round; 0 for plain decoding.
      predicted: the best prediction for this batch.
      measured: the figures of the run that checked it.
      text: says so, and why.
    """

    speculate: bool
    drafter: str
    k: int
    predicted: Prediction
    measured: Summary
    text: str


def recommend(predicted: Prediction, measured: Summary, case: Case, acceptance: Acceptance) -> Recommendation:
    """Decides by the run, not by the prediction: a drafter pays where whole answers were faster with it.

    Args:
      predicted: the best prediction for a batch.
      measured: the run that checked it.
      case: what both are of.
      acceptance: the drafter's.
    """
    assert measured.speedup is not None
    speculate = measured.speedup.median > 1
    if speculate:
        text = f"use {case.label}. Whole answers were {describe_speedup(measured.speedup, 'plain decoding')}."
        if measured.speedup.low <= 1:
            text += " Not in every repeat: measure more questions before you rely on it."
        chosen = (case.name, predicted.k)
    else:
        best = f"The best case, {case.label}, was {describe_speedup(measured.speedup, 'plain decoding')}."
        text = f"decode plainly. {best} {_why_not(predicted, measured, acceptance)}"
        chosen = ("none", 0)
    return Recommendation(speculate, *chosen, predicted, measured, f"batch {predicted.batch}: {text}")


def _why_not(predicted: Prediction, measured: Summary, acceptance: Acceptance) -> str:
    """Says in one sentence where the time goes, and what would have to change."""
    decoding = measured.decode_speedup and measured.decode_speedup.median
    if decoding is not None and decoding > 1:
        return f"Decoding alone was {decoding:.2f} times as fast: longer answers would gain."
    if predicted.speedup > 1:
        gain = f"{measured.round_gain:.2f} times the tokens of a plain step (predicted {predicted.round_gain:.2f})"
        if measured.round_cost is None:
            return f"Its rounds gave {gain}, and the answers are too short to time."
        cost = f"{measured.round_cost:.2f} times as long (predicted {predicted.round_cost:.2f})"
        return f"Its rounds gave {gain} and took {cost}."
    if acceptance.drafting == 0:
        return "It found nothing to draft in these texts."
    if (share := acceptance.accepted_at[0] / acceptance.drafting) < _FEW_ACCEPTED:
        return f"Only {share:.0%} of its first drafts are accepted: a drafter trained for this model is better."
    cost = predicted.cost
    if cost.draft > cost.verify - 1:
        return f"Its drafts alone take {cost.draft:.2f} plain steps: a cheaper drafter is needed."
    smaller = ", or decode smaller batches" if predicted.batch > 1 else ""
    return f"To verify them takes {cost.verify:.2f} plain steps on this device: draft fewer{smaller}."


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Predicts the batch at which speculation stops to pay as batches grow.

    Attributes:
      pays_at: the largest batch below those that do not pay; `None` if none pays.
      not_from: the least batch from which on none pays; `None` if the largest one does.
      estimate: the batch between them where both ways of decoding would be equally fast, by a straight line over the
        logarithm of the batch; `None` unless there are both.
    """

    pays_at: int | None
    not_from: int | None
    estimate: float | None

    @property
    def text(self) -> str:
        """All that in one sentence."""
        if self.not_from is None:
            return f"Speculation pays up to the largest batch that was measured, {self.pays_at}."
        if self.pays_at is None:
            return "Speculation pays at no batch that was measured."
        return (
            f"Speculation pays at batch {self.pays_at} and no longer at batch {self.not_from}: "
            f"both ways of decoding are equally fast at about {self.estimate:.0f}."
        )


def crossover(speedups: Mapping[int, float]) -> Crossover:
    """Finds the crossover from the best speed-up at each batch, of at least one batch."""
    batches = sorted(speedups)
    pays_at = max((batch for batch in batches if speedups[batch] > 1), default=None)
    not_from = min((batch for batch in batches if pays_at is None or batch > pays_at), default=None)
    if pays_at is None or not_from is None:
        return Crossover(pays_at, not_from, None)
    share = (speedups[pays_at] - 1) / (speedups[pays_at] - speedups[not_from])
    return Crossover(pays_at, not_from, pays_at * (not_from / pays_at) ** share)
