"""Takes models and drafters as callers give them, and loads those that are given by name."""

import os
from typing import Any

from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.core.model import Model
from jaxspec.drafters.adapt import LengthOption, check_single
from jaxspec.drafters.base import Drafter
from jaxspec.named import drafter_of, load_drafter


def as_model(value: Any, name: str) -> Model:
    """Returns a model, loaded if it is given by name."""
    if isinstance(value, str | os.PathLike):
        return load(value)
    if not isinstance(value, Model):
        raise TypeError(
            f"{name} must be a model or the name of one, got {type(value).__name__}; "
            "jaxspec.load, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    return value


def as_drafter(
    draft: Any,
    target: Model,
    target_name: Any,
    k: Any,
    num_drafts: int,
    tokenizer: Tokenizer | None,
) -> Drafter:
    """Returns a drafter, made from a model or loaded if it is given by name."""
    if isinstance(draft, Drafter):
        check_single(num_drafts)
        if k is not None and k not in (draft.max_drafts, getattr(draft, "k", None)):
            raise ValueError(f"k is {k}, but the drafter was made with k={draft.max_drafts}; leave k out")
        return draft
    draft = "none" if draft is None else draft
    if not isinstance(draft, str | os.PathLike):
        k = "adaptive" if k is None and num_drafts == 1 else k
        return drafter_of(draft, k, num_drafts, target=target, tokenizer=tokenizer)
    LengthOption.parse(k)  # raises for a wrong `k` before anything is loaded
    name = target_name if isinstance(target_name, str) else None
    return load_drafter(draft, target, target_name=name, k=k, num_drafts=num_drafts, tokenizer=tokenizer)
