"""A drafter's number of drafts by a word: "adaptive", "adaptive:16", "fixed"."""

import dataclasses
from typing import Any

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.cost_file import saved_costs
from jaxspec.drafters.costs import estimate_costs, rising
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.heads.dflash.drafter import DFlashDrafter
from jaxspec.heads.medusa.drafter import MedusaDrafter

# The most that are drafted where nobody says how many.
MOST = 8
# The share of its drafts that a head is expected to have accepted, and how much of plain decoding's time they must save
# for it to be chosen.
_KEPT, _WORTH = 0.6, 0.1


@dataclasses.dataclass(frozen=True)
class Wish:
    """How many drafts somebody asked for.

    Attributes:
      k: a number or a schedule; `None` is the default of the kind.
      adaptive: whether each row is to find its own number.
      most: then at most so many; `None` is `MOST`, or what the heads can guess.
    """

    k: int | DraftLength | None = None
    adaptive: bool = False
    most: int | None = None

    @classmethod
    def parse(cls, k: Any) -> "Wish":
        """From a number, a schedule, or a word, digits among them.

        Raises:
          ValueError, TypeError: it is none of them.
        """
        if not isinstance(k, str):
            if k is not None and not isinstance(k, DraftLength):
                validate.draft_length(k)
            return cls(k)
        word, colon, most = k.partition(":")
        if word == "fixed" and not colon:
            return cls()
        if word == "adaptive" and (not colon or (most.isdecimal() and int(most) > 0)):
            return cls(adaptive=True, most=int(most) if colon else None)
        if k.removeprefix("-").isdecimal():
            return cls.parse(int(k))
        raise ValueError(f"k must be a number, 'fixed', 'adaptive' or 'adaptive:8', got {k!r}")


def adapt(drafter: Drafter, target: Model, most: int | None = None, *, batch: int = 1) -> Drafter:
    """The same drafter, drafting as many tokens as pay: `Adaptive` with costs that were measured here, or estimated.

    Measured ones are those that `jaxspec plan --save` keeps. Two drafters keep one account, and may lose as much as one
    alone.

    Args:
      drafter: one that takes a schedule, or a `HybridDrafter` of two.
      target: the model to draft for.
      most: the most drafts; `None` is 8, or what the drafter's heads can guess.
      batch: how many rows costs are for. With fewer rows it drafts less than would pay, with more it may lose more
        than `Adaptive` says.
    """
    if isinstance(drafter, HybridDrafter):
        # Both allowances add up.
        model = _adapt(drafter.model, target, most, batch, Adaptive.allowance / 2)
        copying = _adapt(drafter.copying, target, model.max_drafts, batch, Adaptive.allowance / 2)
        return dataclasses.replace(drafter, copying=copying, model=model)
    return _adapt(drafter, target, most, batch, Adaptive.allowance)


def spare(drafter: Drafter, target: Model, most: int | None = None, *, batch: int = 1) -> Drafter:
    """What of it is worth having where nobody chose it: of a `HybridDrafter` the copying part alone where many rows rest.

    A pass over several tokens of many rows takes so long on a CPU that a model's drafts hardly save any, and a head
    that rests keeps up with every row all the same.

    Args:
      drafter: any.
      target: the model to draft for.
      most: the most drafts, as of `adapt`.
      batch: how many rows.
    """
    if not isinstance(drafter, HybridDrafter):
        return drafter
    lengths, costs, _ = _costs(drafter.model, target, most, batch)
    tokens = [sum(_KEPT**i for i in range(n + 1)) for n in lengths]
    saves = max(count / cost for count, cost in zip(tokens, costs, strict=True)) >= 1 + _WORTH
    return drafter if saves else drafter.copying


def _adapt(drafter: Drafter, target: Model, most: int | None, batch: int, allowance: float) -> Drafter:
    lengths, costs, lag = _costs(drafter, target, most, batch)
    return drafter.with_length(Adaptive(costs, lengths, allowance=allowance, lag=lag))


def _costs(
    drafter: Drafter, target: Model, most: int | None, batch: int
) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """Lengths, what a round of each takes, and what a token takes that was missed."""
    limited = isinstance(drafter, MedusaDrafter | DFlashDrafter)
    lengths = validate.draft_lengths(most or (drafter.max_drafts if limited else MOST))
    costs, lag = estimate_costs(target, drafter, lengths, batch=batch)
    return lengths, rising(saved_costs(target, drafter, lengths, batch=batch) or costs), lag


def describe(drafter: Drafter, target: Model, *, batch: int = 1) -> str:
    """How many tokens a drafter drafts, in words, and where an adaptive one's costs are from."""
    model = drafter.model if isinstance(drafter, HybridDrafter) else drafter
    length = model.draft_length
    if not isinstance(length, Adaptive):
        return str(drafter.max_drafts)
    found = saved_costs(target, model, length.lengths, batch=batch)
    known = found is not None and all(
        abs(a - b) < 1e-6 * b for a, b in zip(rising(found), length.costs.tolist(), strict=True)
    )
    return f"adaptive up to {drafter.max_drafts}, costs {'measured' if known else 'given or estimated'}"
