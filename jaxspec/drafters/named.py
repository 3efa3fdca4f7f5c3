"""Drafters by name: those that ship with a model, folders of heads and of models, "ngram" and "suffix"."""

import os
from typing import Any

from jax.sharding import Mesh

from jaxspec import checks
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.block import BlockDrafter
from jaxspec.drafters.eagle import EagleDrafter
from jaxspec.drafters.medusa import MedusaDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.drafters.suffix import SuffixDrafter
from jaxspec.heads.block import BlockHead
from jaxspec.heads.eagle import EagleHead
from jaxspec.heads.medusa import MedusaHead
from jaxspec.model import LanguageModel, Model
from jaxspec.schedules import Schedule
from jaxspec.sharding import Rules
from jaxspec.weights import load, zoo
from jaxspec.weights.heads import is_head, load_head

DEFAULT_K = 4
# What each kind of head is drafted from by.
_OF_HEADS = {EagleHead: EagleDrafter, BlockHead: BlockDrafter, MedusaHead: MedusaDrafter}


def drafter_of(draft: Any, k: int | Schedule | None = None, num_drafts: int = 1) -> Drafter:
    """A chain of drafts from a model or a head.

    Args:
      draft: a `Model`, or what `jaxspec.load_head` gives.
      k: drafted tokens a round, or a schedule; `None` is the default of the kind.
      num_drafts: how many chains of a draft model compete in each round.

    Raises:
      TypeError: it is neither.
      ValueError: `k` or `num_drafts` does not fit.
    """
    if k is not None and not isinstance(k, Schedule):
        checks.draft_length(k)
    for kind, drafter in _OF_HEADS.items():
        if isinstance(draft, kind):
            if num_drafts != 1:
                raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts")
            return drafter(draft) if k is None else drafter(draft, k=k)
    if isinstance(draft, type) or not isinstance(draft, Model):
        raise TypeError(
            f"draft must be a model, a head or the name of one, got {type(draft).__name__}; jaxspec.load, "
            "jaxspec.load_head, jaxspec.from_function and jaxspec.from_nnx make one"
        )
    return ModelDrafter(draft, k=DEFAULT_K if k is None else k, num_drafts=num_drafts)


def load_drafter(
    name_or_path: str | os.PathLike[str],
    target: LanguageModel,
    *,
    target_name: str | None = None,
    k: int | Schedule | None = None,
    num_drafts: int = 1,
    dtype: Any = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> Drafter:
    """A drafter by its name, ready for `jaxspec.generate`.

    Args:
      name_or_path: "ngram" or "suffix" (they copy from the text itself), "none"; "auto", the best one that ships with
        the target, else "ngram"; a drafter that ships with the target, such as "eagle" or
        "smollm2-135m-instruct/eagle"; or a head or a draft model as for `jaxspec.load_head` and `jaxspec.load`.
      target: the model to draft for.
      target_name: what it was loaded by, for the names of its own drafters.
      k: drafted tokens a round, or a schedule; `None` is the default of the kind.
      num_drafts: how many chains of a draft model compete in each round.
      dtype: of weights and activations; `None` is what `load` chooses.
      mesh: splits models and heads over devices.
      rules: how.

    Raises:
      TypeError, ValueError: for arguments that do not fit each other.
      OSError: it cannot be read or downloaded.
    """
    name = zoo.draft_name(name_or_path, target_name)
    if name in ("ngram", "suffix", "none"):
        if num_drafts != 1:
            raise ValueError(f"num_drafts is {num_drafts}, but only a draft model draws several drafts; leave it out")
        if name == "ngram":
            return NGramDrafter(k=DEFAULT_K if k is None else k)
        if name == "suffix":
            return SuffixDrafter() if k is None else SuffixDrafter(k=k)
        if k:
            raise ValueError(f"k is {k}, but there is nothing to draft with; pass a draft, or leave k out")
        return NoDrafter()
    if is_head(name):
        return drafter_of(load_head(name, target, dtype=dtype, mesh=mesh, rules=rules), k, num_drafts)
    return drafter_of(load(name, dtype=dtype, mesh=mesh, rules=rules), k, num_drafts)
