"""What drafting would cost where memory sets the pace: the bytes of its passes over those of the target's pass.

An accelerator at small batches reads weights and cache for as long as it takes, however few tokens it feeds. So a
round costs one pass of the target, which verifies, and the drafter's own passes.
"""

import math
from typing import Any

import jax

from jaxspec.bench.workload import pass_bytes, weight_bytes
from jaxspec.contrib.sparse_cache import SparseCacheDrafter
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.heads.dflash.drafter import DFlashDrafter
from jaxspec.heads.medusa.drafter import MedusaDrafter
from jaxspec.nn.language_model import LanguageModel


def speedup_by_bytes(tokens: float, drafting: float) -> float:
    """Over plain decoding: Leviathan et al. 2211.17192, theorem 3.8, with measured tokens a round.

    Args:
      tokens: a round emits, the bonus included.
      drafting: the passes of a round's drafts in passes of the target; theirs is `k c`.
    """
    return tokens / (1.0 + drafting)


def drafting_by_bytes(target: LanguageModel, drafter: Drafter, rows: int, context: int) -> float | None:
    """The passes of a round's drafts in passes of the target, by the bytes that they read.

    Args:
      target: the model.
      drafter: what drafts in every round all it can; of `HybridDrafter` the model does.
      rows: decoded together: they share the weights, and have caches of their own.
      context: tokens of each row's text.

    Returns:
      `None` for a drafter of another kind, or one whose model is none of jaxspec's.
    """
    read = _read(target, drafter, rows, context)
    return None if read is None else read / pass_bytes(target, rows, context)


def _read(target: LanguageModel, drafter: Drafter, rows: int, context: int) -> int | None:
    """The bytes that a round's drafts read."""
    match drafter:
        case NoDrafter() | LookupDrafter():
            return 0
        case HybridDrafter():
            return _read(target, drafter.model, rows, context)
        case SparseCacheDrafter():
            return drafter.k * pass_bytes(target, rows, min(context, drafter.sinks + drafter.window))
        case EarlyExitDrafter():
            return drafter.k * _first_layers(target, drafter.layers, rows, context)
        case DFlashDrafter() | MedusaDrafter():
            return _head(drafter.head, rows, context)
    # One model or one head, a pass for each level of drafts.
    model = getattr(drafter, "model", getattr(drafter, "head", None))
    if isinstance(model, LanguageModel):
        return drafter.k * pass_bytes(model, rows, context)
    return drafter.k * _head(model, rows, context) if hasattr(model, "params") else None


def _head(head: Any, rows: int, context: int) -> int:
    """A head's weights, and its own cache if it has one."""
    has_cache = hasattr(head, "init_cache")
    return _size(head.params) + (_size(jax.eval_shape(lambda: head.init_cache(rows, context))) if has_cache else 0)


def _first_layers(target: LanguageModel, layers: int, rows: int, context: int) -> int:
    """The first layers and the output head; verification does not read those layers again for the drafts."""
    params = target.params
    own = sum(_size(params[f"layer_{index}"]) for index in range(layers))
    return own + _size(params.get("head", params["embedding"])) + _cache(target, layers, rows, context)


def _cache(target: LanguageModel, layers: int, rows: int, context: int) -> int:
    """What some of the target's layers read of their cache."""
    whole = pass_bytes(target, rows, context) - weight_bytes(target)
    return whole * layers // target.module.config.num_layers


def _size(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
