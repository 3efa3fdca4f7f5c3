"""Predicts the costs of rounds from the bytes that models read, as the default of `Adaptive` without measurements.

Estimates err on the high side: one that is too high may draft too little, while one that is too low loses time.
"""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.core import validate
from jaxspec.core.memory import size_of
from jaxspec.core.model import Model
from jaxspec.core.typed import check_fields, typed

# The relative time of a pass over n tokens: pairs (n, time over that of one token), extrapolated with the last slope.
# On a CPU, measured with SmolLM2-135M on two cores ("stored": with a model of 1.5B); on an accelerator, where reading
# the weights takes the time, a cautious guess.
_PASSES = {
    "native": ((1, 1.0), (2, 1.03), (3, 1.06), (5, 1.1), (8, 1.2), (16, 1.75), (24, 2.1), (40, 2.9), (96, 6.5)),
    "native-bfloat16": ((1, 1.0), (2, 1.06), (3, 1.1), (5, 1.2), (8, 1.45), (16, 2.4), (40, 4.4), (96, 10.0)),
    "stored": ((1, 1.0), (2, 1.05), (3, 1.12), (5, 1.27), (8, 1.55)),
    "stored in cache": ((1, 1.0), (2, 1.15), (3, 1.3), (5, 1.6), (8, 2.2)),
    "cpu": ((1, 1.0), (2, 1.40), (3, 1.43), (5, 1.64), (8, 1.75)),
    "accelerator": ((1, 1.0), (2, 1.05), (8, 1.15), (32, 1.35)),
}
# Weights smaller than this may stay in a processor's last-level cache, where passes are bound by arithmetic.
_CACHE = 2**28
# Overheads: of a round that drafts, besides its passes; of drafting, if its layers are not counted.
_ROUND, PASS = 0.02, 0.01
# The share of a pass that is proportional to the number of layers, regardless of the bytes that they read.
_LAYERS = 0.25
# The most tokens of a pass, layers of a model, and bytes.
_TOKENS, _DEPTH, _BYTES = 2**31 - 1, 2**20, 2**62


class DraftCosts(NamedTuple):
    """Gives the time of drafting, in units of a round of plain decoding.

    Attributes:
      first: the time spent once in each round that drafts.
      each: the time of each draft.

    Example:
      >>> jaxspec.draft_length.DraftCosts(first=0.01, each=0.2).each
      0.2
    """

    first: float
    each: float


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Predicts the time of passes relative to a round of plain decoding, without running anything.

    A drafter states its costs in `DrafterInfo.costs`, using the methods of this class.

    Attributes:
      target: the target.
      batch: the number of rows that are decoded together.

    Raises:
      TypeError, ValueError: `target` is not a model, `batch` is not a positive integer, or an argument of a method is
        not of its type.

    Example:
      >>> model = jaxspec.draft_length.CostModel(target, batch=2)
      >>> costs = model.rounds(model.draft_model(draft), lengths=(0, 2, 4))
      >>> costs[0], costs[1] < costs[2]
      (1.0, True)
    """

    target: Model
    batch: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "target", batch=(1, _TOKENS))

    @typed()
    def rounds(self, drafting: DraftCosts, lengths: tuple[int, ...]) -> tuple[float, ...]:
        """Returns the time of a round of each length, including verification: the `costs` of `Adaptive`."""
        validate.in_range("DraftCosts", **{name: (getattr(drafting, name), 0, math.inf) for name in drafting._fields})
        times = (
            self.widened(self.target, n + 1) + (n > 0) * (drafting.first + _ROUND) + n * drafting.each for n in lengths
        )
        return tuple(round(time, 4) for time in times)

    @typed(tokens=(1, _TOKENS))
    def widened(self, network: Any, tokens: int) -> float:
        """Returns the time of a pass of `network` over `tokens` tokens a row, divided by that of one token a row."""
        kind = _kernels(network)
        return _pass(kind, tokens * self.batch) / _pass(kind, self.batch)

    @typed(read=(0, _BYTES), layers=(0, _DEPTH))
    def share(self, read: int, layers: int | None) -> float:
        """Returns the time of a pass over `read` bytes in `layers` layers, divided by that of the target."""
        share, own = read / read_bytes(self.target), _layers(self.target)
        if layers is None or own is None:
            return share + PASS
        return (1 - _LAYERS) * share + _LAYERS * layers / own

    @typed()
    def draft_model(self, model: Model) -> DraftCosts:
        """Returns the costs of a draft model: a pass for each draft, of which the first reads two tokens."""
        share = self.share(read_bytes(model), _layers(model))
        return DraftCosts(share * (self.widened(model, 2) - 1), share)

    @typed(k=(0, _TOKENS))
    def layer(self, head: Any, k: int) -> DraftCosts:
        """Returns the costs of a one-layer head: a pass a draft, the first over all accepted drafts of up to `k`."""
        share = self.share(_bytes(_params(head)), 1)
        return DraftCosts(share * (self.widened(head, k + 1) - 1), share)

    @typed(k=(0, _TOKENS))
    def one_pass(self, head: Any, k: int) -> DraftCosts:
        """Returns the costs of a head that makes all `k` drafts in one pass."""
        return DraftCosts(_bytes(_params(head)) / read_bytes(self.target) * self.widened(head, max(k, 1)) + PASS, 0.0)

    @typed(layers=(0, _DEPTH))
    def first_layers(self, layers: int) -> DraftCosts:
        """Returns the costs of the target's first layers, with its output head: a pass for each draft."""
        target: Any = self.target
        config = target.module.config
        table = _bytes(target.params["embedding" if config.tied_head else "head"]) / read_bytes(target)
        return DraftCosts(0.0, table + (1 - table) * layers / config.num_layers + PASS)


def rising(costs: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the running maximum of costs, which measurement noise may have made decrease."""
    return tuple(itertools.accumulate(costs, max))


def read_bytes(model: object) -> int:
    """Returns the number of bytes of weights that a pass reads; an untied embedding is not counted."""
    from jaxspec.nn.language_model import LanguageModel  # loads Flax, which the loop does not

    if not isinstance(model, LanguageModel):
        return _bytes(model)
    tied = model.module.config.tied_head
    return _bytes(model.params) - (0 if tied else _bytes(model.params["embedding"]))


def _kernels(network: Any) -> str:
    from jaxspec.nn.convert import kernels_of  # loads Flax, which the loop does not
    from jaxspec.nn.network import Network

    if jax.default_backend() != "cpu":
        return "accelerator"
    kernels = kernels_of(network) if isinstance(network, Network) else "xla"
    known = (kind for kind in (kernels, kernels.partition("-")[0]) if kind in _PASSES)
    kind = next(known, "cpu")
    return "stored in cache" if kind == "stored" and read_bytes(network) < _CACHE else kind


def _pass(kind: str, tokens: int) -> float:
    counts, times = zip(*_PASSES[kind], strict=True)
    slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2])
    return float(np.interp(tokens, counts, times)) + slope * max(0, tokens - counts[-1])


def _layers(model: Model) -> int | None:
    sizes = model.traits.hidden_sizes
    return None if sizes is None else sizes[0]


def _params(head: Any) -> Any:
    if isinstance(head, type) or not hasattr(head, "params"):
        raise TypeError(f"head of CostModel must be a head with params, got {validate.shown(head)}")
    return head.params


def _bytes(params: object) -> int:
    return max(1, size_of(params))
