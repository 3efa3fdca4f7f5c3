"""Decides how many tokens are drafted a round; `base` documents the rules."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.draft_length.adaptive import Adaptive as Adaptive
    from jaxspec.draft_length.base import NUMBER_IS_STATIC as NUMBER_IS_STATIC
    from jaxspec.draft_length.base import DraftLength as DraftLength
    from jaxspec.draft_length.base import Fixed as Fixed
    from jaxspec.draft_length.base import as_draft_length as as_draft_length
    from jaxspec.draft_length.costs import CostModel as CostModel
    from jaxspec.draft_length.costs import DraftCosts as DraftCosts
    from jaxspec.draft_length.early_stop import ConfidenceStop as ConfidenceStop
    from jaxspec.draft_length.early_stop import CumulativeConfidence as CumulativeConfidence
    from jaxspec.draft_length.early_stop import EntropyStop as EntropyStop

__getattr__, __dir__ = lazy(
    __name__,
    {
        "base": ("DraftLength", "Fixed", "NUMBER_IS_STATIC", "as_draft_length"),
        "adaptive": ("Adaptive",),
        "early_stop": ("ConfidenceStop", "CumulativeConfidence", "EntropyStop"),
        "costs": ("CostModel", "DraftCosts"),
    },
)
