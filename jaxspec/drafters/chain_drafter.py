"""What drafters of one chain have in common: they differ in what it is drawn from."""

import abc
from typing import Any

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context
from jaxspec.draft_length.base import DraftLength, split
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.chain import Chain
from jaxspec.drafters.draft_model import Draft


class ChainDrafter(Drafter):
    """Draws a chain from what `draft` names; a subclass is a dataclass with these fields, and more.

    Attributes:
      k: the most drafted tokens a round, or a `DraftLength`.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's own, row by row.
      schedule: how many of the `k` are drafted; follows from `k`.
    """

    k: int
    sampling: Policy | None
    schedule: DraftLength | None

    def __post_init__(self):
        k, schedule = split(self.k, self.schedule)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "schedule", schedule)

    @abc.abstractmethod
    def draft(self, target: Model) -> Draft:
        """What tokens are drawn from, for this target."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.schedule.lengths

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            validate.draft_policy(self.sampling)
        self.check_draft(target)
        self.schedule.check()

    def check_draft(self, target: Model) -> None:
        """Raises `ValueError` or `TypeError` if what it draws from does not fit the target."""
        self.draft(target).check(type(self).__name__, target)

    def init(self, context, prefilled, slots):
        return self.chain(context.target).init(context, prefilled, slots)

    def propose(self, rng: Rng, state: Any, context: Context):
        return self.chain(context.target).propose(rng, state, context)

    def observe(self, state, context: Context, verdict, hidden):
        return self.chain(context.target).observe(state, context, verdict, hidden)

    def chain(self, target: Model) -> Chain:
        """The working part."""
        return Chain(self.draft(target), self.k, self.sampling, self.schedule)
