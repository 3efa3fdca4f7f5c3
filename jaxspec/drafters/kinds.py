"""Which kind of draft a model or a head is."""

from typing import Any

from jaxspec.drafters.draft import Draft, ModelDraft
from jaxspec.drafters.eagle import EagleDraft
from jaxspec.drafters.tandem import TandemDraft
from jaxspec.heads.eagle import EagleHead
from jaxspec.heads.tandem import TandemHead


def as_draft(model: Any, k: int) -> Draft:
    """`model` as something that chains and trees of `k` tokens along a path are drawn from."""
    if isinstance(model, EagleHead):
        return EagleDraft(model, k)
    return TandemDraft(model) if isinstance(model, TandemHead) else ModelDraft(model)
