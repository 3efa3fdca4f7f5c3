"""What to use at each batch, why, and from which batch on nothing pays."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxspec.bench.cases import Case
from jaxspec.bench.plan.acceptance import Acceptance
from jaxspec.bench.plan.costs import RoundCost
from jaxspec.bench.plan.prediction import Prediction
from jaxspec.bench.summary import Summary
from jaxspec.decoding.arguments import default_verifier

# Where fewer of the first drafts are kept, it is the guesses that are bad.
_FEW_KEPT = 0.4


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """For one batch.

    Attributes:
      batch: rows.
      speculate: whether to use a drafter at all.
      case: the best of those that were predicted, by its label.
      drafter: its name; "none" for plain decoding.
      k: drafts a round; 0 for plain decoding.
      verifier: the class that decides; `None` for plain decoding.
      predicted: the case's prediction.
      measured: what the run gave.
      text: a sentence or more that say so.
    """

    batch: int
    speculate: bool
    case: str
    drafter: str
    k: int
    verifier: str | None
    predicted: Prediction
    measured: Summary
    text: str


def best_of(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest; of equals the one named first."""
    return max(predictions, key=lambda one: one.speedup)


def recommend(
    predicted: Prediction, measured: Summary, case: Case, *, acceptance: Acceptance, cost: RoundCost
) -> Recommendation:
    """Decides by the run, not by the prediction: a drafter pays where whole answers were faster with it.

    Args:
      predicted: the best prediction for a batch.
      measured: the run that checked it.
      case: what both are of.
      acceptance: the drafter's.
      cost: of the case in this batch.
    """
    speculate = measured.speedup.median > 1
    start = f"batch {predicted.batch}: "
    if speculate:
        text = f"{start}use {case.label}. Whole answers were {_times(measured)} as fast as plain decoding."
        if measured.speedup.low <= 1:
            text += " Not in every repeat: measure more questions before you rely on it."
    else:
        text = f"{start}decode plainly. The best case, {case.label}, was {_times(measured)} as fast as plain decoding."
        text += _why_not(predicted, measured, acceptance, cost)
    chosen = (case.name, case.drafter.k, type(default_verifier(case.drafter)).__name__)
    drafter, k, verifier = chosen if speculate else ("none", 0, None)
    return Recommendation(predicted.batch, speculate, case.label, drafter, k, verifier, predicted, measured, text)


def _times(measured: Summary) -> str:
    low, median, high = measured.speedup.low, measured.speedup.median, measured.speedup.high
    return f"{median:.2f} times" + (f" (repeats {low:.2f} to {high:.2f})" if low < high else "")


def _why_not(predicted: Prediction, measured: Summary, acceptance: Acceptance, cost: RoundCost) -> str:
    """Where the time goes, and what would have to change."""
    if predicted.speedup > 1:
        return _where_wrong(predicted, measured)
    text = (
        f" Its round is predicted to take {predicted.round_cost:.2f} plain steps for {predicted.round_gain:.2f} times "
        "the tokens of one, and pays where the second is the larger."
    )
    drafting = acceptance.together.drafting
    if drafting == 0:
        return text + " It found nothing to draft in these texts."
    if (share := acceptance.kept_at[0] / drafting) < _FEW_KEPT:
        return (
            text + f" Only {share:.0%} of its first drafts are kept: a drafter trained for this model guesses better."
        )
    if cost.draft > cost.verify - 1:
        return text + f" Its drafts alone take {cost.draft:.2f} plain steps: a cheaper drafter is needed."
    smaller = ", or decode smaller batches" if predicted.batch > 1 else ""
    return text + f" To verify them takes {cost.verify:.2f} plain steps on this device: draft fewer{smaller}."


def _where_wrong(predicted: Prediction, measured: Summary) -> str:
    """Why a run is slow though decoding was predicted to gain."""
    if measured.decode_speedup is not None and measured.decode_speedup.median > 1:
        return f" Decoding alone was {measured.decode_speedup.median:.2f} times as fast: longer answers would gain."
    text = (
        f" {predicted.speedup:.2f} times was predicted for decoding. Its rounds gave {measured.round_gain:.2f} times "
        f"the tokens of a plain step (predicted {predicted.round_gain:.2f})"
    )
    if measured.round_cost is None:
        return f"{text}; the answers are too short to time."
    return f"{text} and took {measured.round_cost:.2f} times as long (predicted {predicted.round_cost:.2f})."


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where speculation stops to pay as batches grow.

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
    """From the best speed-up at each batch.

    Args:
      speedups: by batch, at least one.
    """
    batches = sorted(speedups)
    paying = [batch for batch in batches if speedups[batch] > 1]
    if not paying:
        return Crossover(None, batches[0], None)
    last = paying[-1]
    above = [batch for batch in batches if batch > last]
    if not above:
        return Crossover(last, None, None)
    first = above[0]
    share = (speedups[last] - 1) / (speedups[last] - speedups[first])
    return Crossover(last, first, math.exp(math.log(last) + share * math.log(first / last)))
