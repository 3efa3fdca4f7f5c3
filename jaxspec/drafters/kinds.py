"""Which kind of draft a model or a head is."""

from typing import Any

from jaxspec.drafters.draft_model import Draft, ModelDraft
from jaxspec.heads.eagle.drafter import EagleDraft
from jaxspec.heads.eagle.head import EagleHead
from jaxspec.heads.tandem.drafter import TandemDraft
from jaxspec.heads.tandem.head import TandemHead


def as_draft(model: Any, k: int) -> Draft:
    """`model` as something that chains and trees of `k` tokens along a path are drawn from."""
    if isinstance(model, EagleHead):
        return EagleDraft(model, k)
    return TandemDraft(model) if isinstance(model, TandemHead) else ModelDraft(model)
