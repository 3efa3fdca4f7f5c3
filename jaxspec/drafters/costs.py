"""What rounds should cost, by what they read: the table of `Adaptive` where none was measured."""

import itertools
from typing import Any

import jax
import numpy as np

from jaxspec.core.model import Model
from jaxspec.core.prefill import CATCH_UP_CHUNK
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.cross_vocabulary import CrossVocabularyDrafter
from jaxspec.drafters.early_exit import EarlyExitDrafter
from jaxspec.drafters.lookup import LookupDrafter
from jaxspec.drafters.model import ModelDrafter
from jaxspec.heads.dflash.drafter import DFlashDrafter
from jaxspec.heads.eagle.drafter import EagleDrafter
from jaxspec.heads.medusa.drafter import MedusaDrafter
from jaxspec.heads.tandem.drafter import TandemDrafter
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel, Network

# The time of a pass over so many tokens, over that of one; beyond them the last slope goes on. On a CPU as measured
# with SmolLM2-135M on two cores; on an accelerator, where reading the weights takes the time, a guess on the dear side.
_PASSES = {
    "native": ((1, 1.0), (2, 1.03), (3, 1.06), (5, 1.1), (8, 1.2), (16, 1.75), (24, 2.1), (40, 2.9), (96, 6.5)),
    "native-bfloat16": ((1, 1.0), (2, 1.06), (3, 1.1), (5, 1.2), (8, 1.45), (16, 2.4), (40, 4.4), (96, 10.0)),
    "cpu": ((1, 1.0), (2, 1.40), (3, 1.43), (5, 1.64), (8, 1.75)),
    "accelerator": ((1, 1.0), (2, 1.05), (8, 1.15), (32, 1.35)),
}
# What a round that drafts takes besides passes, and drafting besides reading weights where its layers are not counted.
_ROUND, _PASS = 0.02, 0.01
# The share of a pass that goes with its layers, whatever they read.
_LAYERS = 0.25


def estimate_costs(
    target: Model, drafter: Drafter, lengths: tuple[int, ...], *, batch: int = 1
) -> tuple[tuple[float, ...], float]:
    """`costs` and `lag` of `Adaptive`, from the bytes that models read and the kind of device; nothing is run.

    Meant to be too dear rather than too cheap: what is too dear may draft too little, and what is too cheap loses time.

    Args:
      target: the target.
      drafter: one that takes a schedule.
      lengths: numbers of drafts, rising.
      batch: rows.
    """
    kind = _kind(target)
    first, each, lag = _drafting(target, drafter, max(lengths), batch)
    costs = (_pass(kind, n + 1, batch) + (n > 0) * (first + _ROUND) + n * each for n in lengths)
    return tuple(round(cost, 4) for cost in costs), round(lag, 5)


def _kind(network: Model | Network) -> str:
    if jax.default_backend() != "cpu":
        return "accelerator"
    products = kernels_of(network) if isinstance(network, Network) else "xla"
    return products if products in _PASSES else "cpu"


def _pass(kind: str, tokens: int, batch: int) -> float:
    """The time of a pass over `tokens` tokens of each of `batch` rows, over that of a pass over one of each."""
    return _pass_of_one(kind, tokens * batch) / _pass_of_one(kind, batch)


def _pass_of_one(kind: str, tokens: int) -> float:
    places, times = zip(*_PASSES[kind], strict=True)
    slope = (times[-1] - times[-2]) / (places[-1] - places[-2])
    return float(np.interp(tokens, places, times)) + slope * max(0, tokens - places[-1])


def _drafting(target: Model, drafter: Drafter, k: int, batch: int) -> tuple[float, float, float]:
    """What drafting takes once a round, for each draft, and for each token that was missed before."""
    kind = _kind(getattr(drafter, "head", None) or getattr(drafter, "model", target))
    wide = lambda tokens: _pass(kind, tokens, batch)  # noqa: E731
    if isinstance(drafter, LookupDrafter):
        return _PASS, 0.0, 0.0
    if isinstance(drafter, ModelDrafter | CrossVocabularyDrafter):
        share = _share(target, _read_bytes(drafter.model), _layers(drafter.model))
        return share * (wide(2) - 1), share, share * wide(CATCH_UP_CHUNK) / CATCH_UP_CHUNK
    if isinstance(drafter, EagleDrafter | TandemDrafter):
        share = _share(target, _bytes(drafter.head.params), 1)
        return share * (wide(k + 1) - 1), share, 0.0
    if isinstance(drafter, MedusaDrafter | DFlashDrafter):
        return _bytes(drafter.head.params) / _read_bytes(target) * wide(k) + _PASS, 0.0, 0.0
    if isinstance(drafter, EarlyExitDrafter):
        table = _table_bytes(target) / _read_bytes(target)
        return 0.0, table + (1 - table) * drafter.layers / target.module.config.num_layers + _PASS, 0.0
    return 0.0, 1.0 + _PASS, 0.0  # the target itself, or what cannot be told from outside


def _share(target: Model, read: int, layers: int | None) -> float:
    """The time of a pass that reads so many bytes in so many layers, over that of the target's."""
    share, own = read / _read_bytes(target), _layers(target)
    if layers is None or own is None:
        return share + _PASS
    return (1 - _LAYERS) * share + _LAYERS * layers / own


def _layers(model: Model) -> int | None:
    return getattr(getattr(getattr(model, "module", None), "config", None), "num_layers", None)


def _bytes(params: Any) -> int:
    return max(1, sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)))


def _table_bytes(target: LanguageModel) -> int:
    params = target.params
    return _bytes(params["embedding" if target.module.config.tied_head else "head"])


def _read_bytes(model: Model) -> int:
    """Bytes of weights that a pass reads; of an untied embedding it reads one row a token."""
    if not isinstance(model, LanguageModel):
        return _bytes(model)
    config = getattr(model.module, "config", None)
    unread = 0 if getattr(config, "tied_head", True) else _bytes(model.params["embedding"])
    return _bytes(model.params) - unread


def rising(costs: tuple[float, ...]) -> tuple[float, ...]:
    """The same, with what noise made to fall held level."""
    return tuple(itertools.accumulate(costs, max))
