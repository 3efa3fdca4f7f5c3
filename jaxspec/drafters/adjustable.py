"""Defines `AdjustableDrafter`, the base of drafters whose `k` is a number or a `DraftLength`."""

import abc
import dataclasses
from typing import Any, Self, cast

from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter, check_no_lookup


class AdjustableDrafter(Drafter):
    """Drafts as many tokens as its field `k` says, a number or a `DraftLength`; subclasses are dataclasses.

    A subclass gives `draft_length`, and in `propose` and `observe` asks it how far each row drafts: of the rows that
    are `context.able`, as in a `HybridDrafter` others are drafted for by something else. One that copies from the text
    need not: `LookupDrafter` does that.

    Example:
      >>> import dataclasses
      >>> from jaxspec.draft_length import NUMBER_IS_STATIC, as_draft_length
      >>> @jaxspec.core.register_dataclass
      ... @dataclasses.dataclass(frozen=True)
      ... class RepeatDrafter(jaxspec.drafters.AdjustableDrafter):
      ...     k: int | jaxspec.draft_length.DraftLength = dataclasses.field(default=3, metadata=NUMBER_IS_STATIC)
      ...     draft_length = property(lambda self: as_draft_length(self.k))
      ...     deterministic = property(lambda self: True)
      ...     def init(self, context, prefilled, slots):
      ...         return self.draft_length.init(context.tokens.shape[0])
      ...     def propose(self, rng, state, context):
      ...         longest = self.draft_length.longest(state, context.able, context.live)
      ...         tokens = jnp.repeat(context.last, self.max_drafts, axis=1)
      ...         valid = jnp.arange(self.max_drafts)[None] < longest[:, None]
      ...         return jaxspec.core.Proposal(tokens, valid & context.able[:, None]), state
      >>> RepeatDrafter().max_drafts, RepeatDrafter().with_length(2).lengths
      (3, (2,))
      >>> jaxspec.generate(target, RepeatDrafter(), prompt, max_new_tokens=4).tokens.shape
      (2, 4)
    """

    @property
    @abc.abstractmethod
    def draft_length(self) -> DraftLength:
        """The `DraftLength` that `k` stands for."""

    @property
    def max_drafts(self) -> int:
        return self.draft_length.lengths[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.draft_length.lengths

    def with_length(self, k: int | DraftLength, *, lookup: int | DraftLength | None = None) -> Self:
        check_no_lookup(self, lookup)
        return dataclasses.replace(cast(Any, self), k=k)
