"""Decides how many tokens are drafted a round; `base` documents the rules."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.draft_length.adaptive import Adaptive as Adaptive
    from jaxspec.draft_length.base import DraftLength as DraftLength
    from jaxspec.draft_length.base import Fixed as Fixed
    from jaxspec.draft_length.early_stop import ConfidenceStop as ConfidenceStop
    from jaxspec.draft_length.early_stop import CumulativeConfidence as CumulativeConfidence
    from jaxspec.draft_length.early_stop import EntropyStop as EntropyStop

__getattr__, __dir__ = lazy(
    __name__,
    {
        "base": ("Fixed", "DraftLength"),
        "adaptive": ("Adaptive",),
        "early_stop": ("ConfidenceStop", "CumulativeConfidence", "EntropyStop"),
    },
)
