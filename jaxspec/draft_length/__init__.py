"""Decides how many tokens to draft in a round; `base` documents the rules."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.draft_length.adaptive import Adaptive as Adaptive
    from jaxspec.draft_length.base import (
        NUMBER_IS_STATIC as NUMBER_IS_STATIC,
        DraftLength as DraftLength,
        Fixed as Fixed,
        as_draft_length as as_draft_length,
    )
    from jaxspec.draft_length.costs import CostModel as CostModel, DraftCosts as DraftCosts
    from jaxspec.draft_length.early_stop import (
        ConfidenceStop as ConfidenceStop,
        CumulativeConfidence as CumulativeConfidence,
        EntropyStop as EntropyStop,
    )
