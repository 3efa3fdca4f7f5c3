"""The target without some of its blocks as drafter.

layer       0          1          2          3
target      A M        A M        A M        A M       A: attention, M: MLP
draft       A M        . M        A .        A M       attention=(1,), mlp=(2,)
"""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Int

from jaxspec.cache import KVCache
from jaxspec.drafters.chain_drafter import ChainDrafter
from jaxspec.drafters.draft import Draft, ModelDraft
from jaxspec.model import LanguageModel, Model, ModelOutput
from jaxspec.nn.skipping import run_without
from jaxspec.pytree import register_dataclass
from jaxspec.sampling import Policy
from jaxspec.schedules.base import Schedule


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SkippingModel:
    """A `Model`: `target` without the attention and the MLP of some layers. It gives no hidden states."""

    target: LanguageModel
    attention: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    mlp: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.target.context_length

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """A cache of the layers that attend."""
        layers = self.target.module.config.num_layers - len(self.attention)
        return self.target.empty_cache(layers, batch, capacity)

    def __call__(
        self, tokens: Int[Array, "b t"], cache: KVCache, *, mask=None, positions=None, capture=(), pending=None
    ) -> ModelOutput:
        if capture:
            raise ValueError(f"a model that skips layers has no states to capture, got capture={capture}")
        logits, entries = run_without(
            self.target.module,
            self.target.params,
            self.attention,
            self.mlp,
            tokens,
            cache,
            mask=mask,
            positions=positions,
            pending=pending,
        )
        return ModelOutput(self.target.placement.logits(logits), entries)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SkippingDrafter(ChainDrafter):
    """Draws a chain of tokens from the target without some of its attention and MLP blocks.

    Zhang et al. 2309.08168 (Draft & Verify), section 3, with a given set of blocks. It shares the target's weights and
    has a cache of its own: a layer behind a skipped one computes other keys. Skip the layers that matter
    least, neither the first nor the last ones.

    Attributes:
      attention: the layers whose attention is skipped; not all.
      mlp: the layers whose MLP is skipped.
      k: the most drafted tokens a round. Give a `Schedule` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row.
      schedule: how many of the `k` are drafted; follows from `k`.
    """

    attention: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    mlp: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    k: int = dataclasses.field(default=4, metadata={"static": True})
    sampling: Policy | None = None
    schedule: Schedule | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("attention", "mlp"):
            object.__setattr__(self, name, _layer_numbers(name, getattr(self, name)))
        if not self.attention and not self.mlp:
            raise ValueError("nothing is skipped; pass layers, such as attention=(3, 5), mlp=(4,)")

    def draft(self, target: Model) -> Draft:
        return ModelDraft(SkippingModel(target, self.attention, self.mlp))

    def check_draft(self, target: Model) -> None:
        if not (isinstance(target, LanguageModel) and target.resumes):
            raise TypeError(
                f"SkippingDrafter runs parts of a LanguageModel over a jaxspec.nn.Transformer, got a target of type "
                f"{type(target).__name__}; load the target with jaxspec.load, or pass another drafter"
            )
        layers = target.module.config.num_layers
        if (last := max(self.attention + self.mlp)) >= layers:
            raise ValueError(f"layer {last} cannot be skipped, got a target of {layers} layers; pass 0 to {layers - 1}")
        if len(self.attention) == layers:
            raise ValueError(f"the attention of all {layers} layers is skipped; leave one at least")


def _layer_numbers(name: str, layers: Any) -> tuple[int, ...]:
    """Layers in order, each once. Raises unless they are integers of at least 0."""
    if not isinstance(layers, tuple | list) or not all(type(layer) is int for layer in layers):
        raise TypeError(f"{name} must be a tuple of layer numbers, got {layers!r}; pass (3, 5)")
    if layers and min(layers) < 0:
        raise ValueError(f"{name} counts layers from 0, got {min(layers)}")
    return tuple(sorted(set(layers)))
