"""Compares a prediction with the run that checks it, part by part."""

import dataclasses
from typing import Any

from jaxspec.bench.costs import RoundCost
from jaxspec.bench.plan.prediction import Prediction
from jaxspec.bench.summary import Summary

# A prediction that is off by more than this is warned of.
LIMIT = 0.15


@dataclasses.dataclass(frozen=True)
class Part:
    """Compares one part of a prediction.

    Attributes:
      name: with its article, for a sentence.
      unit: of both figures.
      predicted: what was predicted.
      measured: what it was in the run, or right after it where a run does not tell its parts.
      effect: by what share of itself the predicted speed-up is too high for it; below 0 it is too low.
    """

    name: str
    unit: str
    predicted: float
    measured: float
    effect: float


@dataclasses.dataclass(frozen=True)
class Deviation:
    """Says how far a prediction was from its run.

    Attributes:
      batch: rows.
      case: its label.
      predicted: the speed-up over plain decoding that was predicted, the prompts' time left out.
      measured: the run's.
      parts: what the prediction was made of.
    """

    batch: int
    case: str
    predicted: float
    measured: float
    parts: tuple[Part, ...]

    @property
    def off(self) -> float:
        """How far the prediction was above the run, as a share of the run; below 0 it was too low."""
        return self.predicted / self.measured - 1

    @property
    def warns(self) -> bool:
        """Whether it is further off than a prediction should be."""
        return abs(self.off) > LIMIT

    @property
    def worst(self) -> Part:
        """The part that put the prediction off most, in the direction in which it is off."""
        return max(self.parts, key=lambda part: part.effect if self.off > 0 else -part.effect)

    @property
    def text(self) -> str:
        """Says how far it was off; by which part, where that is far."""
        side = "above" if self.off > 0 else "below"
        text = (
            f"batch {self.batch}: the prediction for {self.case} was {abs(self.off):.0%} {side} the run, "
            f"{self.predicted:.2f}x for {self.measured:.2f}x."
        )
        if not self.warns:
            return text
        part = self.worst
        figures = f"{part.predicted:.2f} {part.unit} predicted, {part.measured:.2f} measured"
        return f"{text} Off most was {part.name}: {figures}."

    def as_record(self) -> dict[str, Any]:
        """Returns all of it for JSON."""
        return dataclasses.asdict(self) | {"off": self.off, "warns": self.warns, "worst": self.worst.name}


def deviation(predicted: Prediction, measured: Summary, cost: RoundCost, fed: int) -> Deviation | None:
    """Compares a prediction with its run; `None` where the run was too short to time.

    Effects are those of the first order: together they are about the whole.

    Args:
      predicted: for a batch.
      measured: the run of the same case and batch.
      cost: of its rounds, timed after the run, as a run does not tell its parts.
      fed: tokens of the target's pass in a round.
    """
    if measured.decode_speedup is None or measured.round_cost is None:
        return None
    share, gain, whole = predicted.drafting, predicted.round_gain, predicted.round_cost
    before, after = _parts(predicted.cost, share, fed), _parts(cost, share, fed)
    # What a round takes beside: the verifier, the commit, and what a loop takes that a round alone does not.
    for total, of in ((whole, before), (measured.round_cost, after)):
        of["the rest of a round"] = 1.0, total - sum(part * took for part, took in of.values())
    parts = [Part("acceptance", "tokens a round", gain, measured.round_gain, (gain - measured.round_gain) / gain)]
    for name, (part, took) in before.items():
        parts.append(Part(name, "plain steps", took, after[name][1], part * (after[name][1] - took) / whole))
    return Deviation(predicted.batch, predicted.case, predicted.speedup, measured.decode_speedup.median, tuple(parts))


def _parts(cost: RoundCost, share: float, fed: int) -> dict[str, tuple[float, float]]:
    """Returns the parts of a round by name: in which share of the rounds they come, and what they take there.

    A round without drafts is one part.
    """
    parts = {"the draft pass": (share, cost.draft), f"the target's pass over {fed} tokens": (share, cost.verify)}
    return parts if cost.idle is None else parts | {"a round without drafts": (1.0 - share, cost.idle)}
