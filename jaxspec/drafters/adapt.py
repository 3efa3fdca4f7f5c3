"""Parses numbers of drafts by a word ("adaptive", "adaptive:16", "fixed"), and gives drafters the length that pays."""

import dataclasses
from typing import Self

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import DraftLength
from jaxspec.draft_length.costs import CostModel, rising
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.cost_file import saved_costs

# The most that are drafted where nobody says how many.
MOST = 8
# The share of its drafts that a head is expected to have accepted, and how much of plain decoding's time they must save
# for it to be chosen.
_ACCEPTED, _WORTH = 0.6, 0.1


@dataclasses.dataclass(frozen=True)
class LengthOption:
    """Reads the option `k` of commands and of `load_drafter`.

    Attributes:
      k: a number or a `DraftLength`; `None` is the default of the drafter.
      adaptive: whether each row is to find its own number.
      longest: then the most drafts; `None` is `MOST`, or what the heads can guess.
    """

    k: int | DraftLength | None = None
    adaptive: bool = False
    longest: int | None = None

    @classmethod
    def parse(cls, k: int | DraftLength | str | None) -> Self:
        """Reads a number, a `DraftLength`, or a word, digits among them.

        Raises:
          ValueError, TypeError: `k` is none of them.
        """
        if not isinstance(k, str):
            if k is not None and not isinstance(k, DraftLength):
                validate.draft_length(k)
            return cls(k)
        word, colon, longest = k.partition(":")
        if word == "fixed" and not colon:
            return cls()
        if word == "adaptive" and (not colon or (longest.isdecimal() and int(longest) > 0)):
            return cls(adaptive=True, longest=int(longest) if colon else None)
        if k.removeprefix("-").isdecimal():
            return cls.parse(int(k))
        raise ValueError(f"k must be a number, 'fixed', 'adaptive' or 'adaptive:8', got {k!r}")


def check_one_draft(k: object, num_drafts: int) -> None:
    """Raises if drafts compete under a `k` that adapts."""
    if num_drafts != 1:
        raise ValueError(f"k is {k!r}, but drafts that compete need a fixed number; pass k=4, or leave num_drafts out")


def check_single(num_drafts: int) -> None:
    """Raises if several drafts are asked of what draws one."""
    if num_drafts != 1:
        raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts; leave it out")


def adapt(drafter: Drafter, target: Model, longest: int | None = None, *, batch: int = 1) -> Drafter:
    """Returns the same drafter, drafting as many tokens as pay: with `Adaptive`, and costs measured here or estimated.

    Measured ones are those that `jaxspec plan --save` keeps.

    Args:
      drafter: one that takes a `DraftLength`, or a `HybridDrafter` of two.
      target: the model to draft for.
      longest: the most drafts; `None` is 8, or what the drafter's heads can guess.
      batch: how many rows costs are for. With fewer rows it drafts less than would pay, with more it may draft more.

    Raises:
      TypeError: the drafter takes none.
    """
    lookup, model = drafter.lookup_part, drafter.model_part
    if lookup is None:
        return drafter.with_length(_adaptive(drafter, target, longest, batch))
    length = _adaptive(model, target, longest, batch)
    return drafter.with_length(length, lookup=_adaptive(lookup, target, length.lengths[-1], batch))


def spare(drafter: Drafter, target: Model, longest: int | None = None, *, batch: int = 1) -> Drafter:
    """Drops the model half of a hybrid drafter when the batch is too large for it to pay.

    A pass over several tokens of many rows takes so long on a CPU that a model's drafts hardly save any, and a head
    that rests keeps up with every row all the same.

    Args:
      drafter: any; one that is no hybrid is returned as it is.
      target: the model to draft for.
      longest: the most drafts, as of `adapt`.
      batch: how many rows.
    """
    if drafter.lookup_part is None:
        return drafter
    lengths, costs = _costs(drafter.model_part, target, longest, batch)
    tokens = [sum(_ACCEPTED**i for i in range(n + 1)) for n in lengths]
    saves = max(count / cost for count, cost in zip(tokens, costs, strict=True)) >= 1 + _WORTH
    return drafter if saves else drafter.lookup_part


def describe(drafter: Drafter, target: Model, *, batch: int = 1) -> str:
    """Says in words how many tokens a drafter drafts, and where an adaptive one's costs are from."""
    model = drafter.model_part
    length = model.draft_length
    if not isinstance(length, Adaptive):
        return str(drafter.max_drafts)
    found = saved_costs(target, model, length.lengths, batch=batch)
    known = found is not None and all(
        abs(a - float(b)) < 1e-6 * float(b) for a, b in zip(rising(found), length.costs, strict=True)
    )
    return f"adaptive up to {drafter.max_drafts}, costs {'measured' if known else 'given or estimated'}"


def estimate_costs(target: Model, drafter: Drafter, lengths: tuple[int, ...], *, batch: int = 1) -> tuple[float, ...]:
    """Predicts the `costs` of `Adaptive`; nothing is run.

    Args:
      target: the target.
      drafter: the drafter.
      lengths: numbers of drafts, rising.
      batch: rows.
    """
    model = CostModel(target, batch)
    return model.rounds(drafter.draft_costs(model, max(lengths)), lengths)


def _adaptive(drafter: Drafter, target: Model, longest: int | None, batch: int) -> Adaptive:
    lengths, costs = _costs(drafter, target, longest, batch)
    return Adaptive(costs, lengths)


def _costs(
    drafter: Drafter, target: Model, longest: int | None, batch: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Returns lengths, and the time of a round of each."""
    lengths = validate.draft_lengths(longest or (drafter.max_drafts if drafter.bounded_by_heads else MOST))
    costs = saved_costs(target, drafter, lengths, batch=batch) or estimate_costs(target, drafter, lengths, batch=batch)
    return lengths, rising(costs)
