"""Parses the option `k` ("4", "adaptive", "adaptive:16", "fixed"), and gives drafters an adaptive draft length."""

import dataclasses
from typing import Any, Self, cast

import jax
import numpy as np

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import DraftLength
from jaxspec.draft_length.costs import CostModel, rising
from jaxspec.drafters.base import AdjustableDrafter, Drafter, draft_length_of
from jaxspec.drafters.cost_file import saved_costs
from jaxspec.drafters.hybrid import HybridDrafter, halves

# The default for the largest number of drafts.
MOST = 8
# The share of a head's drafts that is assumed to be accepted, and the share of plain decoding's time that the drafts
# must save for the head to be worth using.
_ACCEPTED, _WORTH = 0.6, 0.1
# The share at which even the best text's drafts are accepted.
_AT_BEST = 0.9
# By how much a pass over four drafts must be slower than one over a single draft for that one to be worth compiling.
_SLOWER = 1.5


@dataclasses.dataclass(frozen=True)
class LengthOption:
    """Parses the option `k` of commands and of `load_drafter`.

    Attributes:
      k: a number or a `DraftLength`; `None` is the drafter's default.
      adaptive: whether each row chooses its own number of drafts.
      longest: the largest number of drafts if `adaptive`; `None` is `MOST`, or the number of the drafter's heads.
    """

    k: int | DraftLength | None = None
    adaptive: bool = False
    longest: int | None = None

    @classmethod
    def parse(cls, k: int | DraftLength | str | None) -> Self:
        """Parses a number, a `DraftLength`, or a string such as "4", "fixed", "adaptive" or "adaptive:16".

        Raises:
          ValueError, TypeError: `k` is anything else.
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
        raise ValueError(f"k must be a number, 'fixed', 'adaptive' or 'adaptive:8', got {validate.shown(k)}")


def check_one_draft(k: object, num_drafts: int) -> None:
    """Raises `ValueError` if several drafts compete under an adaptive `k`."""
    if num_drafts != 1:
        raise ValueError(f"k is {k!r}, but drafts that compete need a fixed number; pass k=4, or leave num_drafts out")


def check_single(num_drafts: int) -> None:
    """Raises `ValueError` if several drafts are requested from a drafter that draws one."""
    if num_drafts != 1:
        raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts; leave it out")


def with_length(drafter: Drafter, k: int | DraftLength, *, lookup: int | DraftLength | None = None) -> Drafter:
    """Returns the drafter with another `k`.

    Args:
      drafter: a drafter that takes a `DraftLength`, or a `HybridDrafter` of two such drafters; or a tree with a number
        of `nodes`.
      k: the number of drafts, or a `DraftLength`; for a tree, the number of nodes.
      lookup: the `k` of a hybrid's lookup half; `None` uses `k`.

    Raises:
      TypeError: the drafter has no `k`, or no lookup half.
    """
    if isinstance(drafter, HybridDrafter):
        copies = with_length(drafter.lookup, k if lookup is None else lookup)
        return dataclasses.replace(cast(Any, drafter), lookup=copies, model=with_length(drafter.model, k))
    if lookup is not None:
        raise TypeError(f"{type(drafter).__name__} has no lookup half, got lookup={lookup!r}; pass k alone")
    if (
        isinstance(k, int)
        and drafter.tree
        and any(one.name == "nodes" for one in dataclasses.fields(cast(Any, drafter)))
    ):
        return dataclasses.replace(cast(Any, drafter), nodes=k)
    if not isinstance(drafter, AdjustableDrafter):
        raise TypeError(
            f"{type(drafter).__name__} drafts a fixed number of tokens; leave k out, or pass a drafter that takes a k"
        )
    return dataclasses.replace(cast(Any, drafter), k=k)


def adapt(drafter: Drafter, target: Model, longest: int | None = None, *, batch: int = 1) -> Drafter:
    """Returns the drafter with an `Adaptive` draft length, using measured costs if any were saved, else estimates.

    `jaxspec plan --save` measures and saves costs.

    Args:
      drafter: a drafter that takes a `DraftLength`, or a `HybridDrafter` of two such drafters.
      target: the model to draft for.
      longest: the largest number of drafts; `None` is 8, or the number of the drafter's heads.
      batch: the number of rows that costs are for. With fewer rows it drafts too little, with more perhaps too much.

    Raises:
      TypeError: the drafter has no `k`.
    """
    lookup, model = halves(drafter)
    if lookup is None:
        return with_length(drafter, _adaptive(drafter, target, longest, batch))
    length = _adaptive(model, target, longest, batch)
    return with_length(drafter, length, lookup=_adaptive(lookup, target, length.lengths[-1], batch))


def spare(drafter: Drafter, target: Model, longest: int | None = None, *, batch: int = 1) -> Drafter:
    """Drops the model half of a hybrid drafter if the batch is too large for it to be worth its time.

    On a CPU, verifying several tokens for many rows takes so long that a model's drafts save hardly any time. An idle
    head still has to keep up with every row.

    Args:
      drafter: any drafter; one that is not a hybrid is returned unchanged.
      target: the model to draft for.
      longest: the largest number of drafts, as for `adapt`.
      batch: the number of rows.
    """
    lookup, model = halves(drafter)
    if lookup is None:
        return drafter
    return drafter if _is_worth(model, target, longest, batch, _ACCEPTED) else lookup


def for_rows(drafter: Drafter, target: Model, batch: int, *, rests: bool = False) -> Drafter:
    """Returns the drafter with the costs of rounds of this many rows, if its own are those that `adapt` found for one.

    For several rows, lengths may be shorter. The longest is the same, and so are the shapes of states. A drafter with
    other costs, or without, is returned unchanged.

    Args:
      drafter: any drafter.
      target: the model to draft for.
      batch: the number of rows.
      rests: whether the model half of a hybrid is to rest where its drafts cannot be worth their time on any text, if
        it can. Such a drafter continues states that another one began.

    Example:
        >>> from jaxspec.drafters.adapt import adapt, for_rows
        >>> drafter = adapt(jaxspec.NGramDrafter(), target)
        >>> more = for_rows(drafter, target, batch=16).k
        >>> bool(more.costs[-1] >= drafter.k.costs[-1]), more.lengths[-1] == drafter.k.lengths[-1]
        (True, True)
    """
    lookup, model = halves(drafter)
    halved = [model] if lookup is None else [model, lookup]
    if not all(isinstance(draft_length_of(half), Adaptive) for half in halved):
        return drafter
    longest = cast(Adaptive, draft_length_of(model)).lengths[-1]
    own, of_one = jax.tree.flatten(drafter), jax.tree.flatten(adapt(drafter, target, longest))
    same = own[1] == of_one[1] and all(
        one is other or np.array_equal(one, np.asarray(other, np.asarray(one).dtype))
        for one, other in zip(own[0], of_one[0], strict=True)
    )
    if not same:
        return drafter
    rests = rests and lookup is not None and model.info.skips_rounds and batch > 1
    adapted = adapt(drafter, target, longest, batch=batch)
    if not rests or _is_worth(model, target, longest, batch, _AT_BEST):
        return adapted
    return dataclasses.replace(cast(HybridDrafter, adapted), rests=True)


def describe(drafter: Drafter, target: Model, *, batch: int = 1) -> str:
    """Describes how many tokens a drafter drafts, and where the costs of an adaptive one come from."""
    _, model = halves(drafter)
    length = draft_length_of(model)
    if not isinstance(length, Adaptive):
        return str(drafter.max_drafts)
    found = saved_costs(target, model, length.lengths, batch=batch)
    known = found is not None and all(
        abs(a - float(b)) < 1e-6 * float(b) for a, b in zip(rising(found), length.costs, strict=True)
    )
    return f"adaptive up to {drafter.max_drafts}, costs {'measured' if known else 'given or estimated'}"


def estimate_costs(target: Model, drafter: Drafter, lengths: tuple[int, ...], *, batch: int = 1) -> tuple[float, ...]:
    """Predicts the `costs` of `Adaptive` without running anything.

    Args:
      target: the model to draft for.
      drafter: the drafter.
      lengths: the numbers of drafts, increasing.
      batch: the number of rows.
    """
    model = CostModel(target, batch)
    return model.rounds(drafter.info.costs(model, max(lengths)), lengths)


def _is_worth(model: Drafter, target: Model, longest: int | None, batch: int, accepted: float) -> bool:
    """Returns whether a model's drafts, of which a share is accepted, save enough of plain decoding's time."""
    lengths, costs = _costs(model, target, longest, batch)
    tokens = [sum(accepted**i for i in range(n + 1)) for n in lengths]
    return max(count / cost for count, cost in zip(tokens, costs, strict=True)) >= 1 + _WORTH


def _adaptive(drafter: Drafter, target: Model, longest: int | None, batch: int) -> Adaptive:
    lengths, costs = _costs(drafter, target, longest, batch)
    return Adaptive(costs, lengths)


def _lengths(target: Model, longest: int, batch: int) -> tuple[int, ...]:
    """Returns the usual lengths; where wider passes are much slower, with 1 and, of four or more, no second longest.

    The longest stays: it fixes the shapes of states, which rows keep when their batch becomes larger or smaller.
    """
    lengths = validate.draft_lengths(longest)
    model = CostModel(target, batch)
    if longest < 2 or model.widened(target, 5) < _SLOWER * model.widened(target, 2):
        return lengths
    return (0, 1, *(lengths[1:] if len(lengths) < 4 else (*lengths[1:-2], longest)))


def _costs(
    drafter: Drafter, target: Model, longest: int | None, batch: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Returns the lengths to compile for, and the time of a round of each."""
    longest = longest or (drafter.max_drafts if drafter.info.bounded_by_heads else MOST)
    lengths = _lengths(target, longest, batch)
    for measured in (lengths, validate.draft_lengths(longest)):
        if costs := saved_costs(target, drafter, measured, batch=batch):
            return measured, rising(costs)
    return lengths, rising(estimate_costs(target, drafter, lengths, batch=batch))
