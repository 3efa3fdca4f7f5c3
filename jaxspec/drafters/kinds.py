"""Which kind of draft a model or a head is."""

from typing import Any

from jaxspec.drafters.draft import Draft, ModelDraft
from jaxspec.drafters.eagle import EagleDraft
from jaxspec.heads.eagle import EagleHead


def as_draft(model: Any, k: int) -> Draft:
    """`model` as something that chains and trees of `k` tokens along a path are drawn from."""
    return EagleDraft(model, k) if isinstance(model, EagleHead) else ModelDraft(model)
