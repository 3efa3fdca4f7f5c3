"""Defines P-EAGLE's layers (2602.01469, section 3): EAGLE-3's, which guess all drafts of a round in one pass.

    text       a  b  c  d           d is committed and unfed: the target's states end with c's
    pairs      ab bc cd             a state of the target, and the token after it
    pass       cd *m *m             pairs that were not fed yet; then masks, a trained state and a token of no meaning
    predicts   x  y  z              each its own place; the masks leave nothing in the cache

The first layer is EAGLE-3's, those behind it are a decoder's.
"""

import dataclasses

import flax.linen as nn
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.pytree import register_dataclass
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.draft_model import Draft
from jaxspec.heads import untrained
from jaxspec.heads.eagle.head import EagleHead, default_capture, layer_for, start
from jaxspec.heads.eagle.network import EagleLayer
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Block, positions_of, stack_entries


class ParallelEagleLayers(EagleLayer):
    """Applies EAGLE-3's layer and `config.num_layers - 1` usual ones, and knows the state that a mask has."""

    def setup(self):
        super().setup()
        self.deeper = [Block(self.config, layer, self.dtype) for layer in range(1, self.config.num_layers)]
        self.mask_state = self.param("mask_state", nn.initializers.normal(0.02), (self.features,), self.dtype)

    def mask(self) -> Float[Array, "f"]:
        """Returns what stands in place of the target's captured states where there are none."""
        return self.mask_state

    def __call__(
        self,
        embedded: Float[Array, "b t d"],
        states: Float[Array, "b t d"],
        cache: KVCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        pending: KVEntries | None = None,
    ) -> tuple[Float[Array, "b t d"], KVEntries]:
        positions = positions_of(positions, cache, embedded.shape[:2])
        attended, entry = self.attention(self.inputs(embedded, states), cache, pending, positions, mask)
        states, entries = self.feed_forward(states + attended), [entry]
        for block in self.deeper:
            states, entry = block(states, cache, pending, positions, mask)
            entries.append(entry)
        return states, stack_entries(entries, states)

    def everything(
        self, embedded: Float[Array, "b t d"], features: Float[Array, "b t f"], cache: KVCache
    ) -> Float[Array, "b t n"]:
        """Runs one pass through all parameters, so that Flax makes them all."""
        return super().everything(embedded, features + self.mask()[None, None], cache)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelEagleHead(EagleHead):
    """Applies P-EAGLE's layers: an `EagleHead` that guesses several tokens in one pass.

    Attributes:
      mask_token: the token whose embedding masks have; of no text.

    References:
      P-EAGLE (2026), arXiv:2602.01469.

    Example:
      >>> head = jaxspec.heads.eagle.init_parallel(target, key, num_layers=2)
      >>> isinstance(head, jaxspec.heads.EagleHead), head.module.config.num_layers
      (True, 2)
    """

    mask_token: int = dataclasses.field(default=0, metadata={"static": True})

    def mask(self) -> Float[Array, "f"]:
        """Returns the trained state of a mask, as wide as the target's captured ones together."""
        return self._apply(method="mask")

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        """Returns what its drafts take: one pass for all of them."""
        return model.one_pass(self, k)

    def as_draft(self, k: int) -> Draft:
        from jaxspec.heads.eagle.parallel_draft import ParallelEagleDraft  # which imports this module

        return ParallelEagleDraft(self, k)


def init_parallel(
    target: LanguageModel,
    rng: Array,
    *,
    num_layers: int = 4,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    mask_token: int = 0,
    dtype: DTypeLike | None = None,
) -> ParallelEagleHead:
    """Makes an untrained P-EAGLE head.

    Args:
      target: the model to draft for.
      rng: a JAX key; random weights are drawn from it.
      num_layers: of the head; the public ones have four.
      capture: the target's hidden states that it reads; `None` is a low, a middle and a high one.
      draft_vocabulary: how many tokens it may guess, the first of them; `None` is all.
      mask_token: the token whose embedding masks have.
      dtype: of weights and activations; `None` is the target's. Scales of norms are float32.

    Raises:
      ValueError: a number is out of range.

    References:
      P-EAGLE (2026), arXiv:2602.01469.

    Example:
      >>> head = jaxspec.heads.eagle.init_parallel(target, key, num_layers=2, draft_vocabulary=100)
      >>> head.ids.shape, jaxspec.EagleDrafter(head, k=7).max_drafts
      ((100,), 7)
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    if not 0 <= mask_token < target.vocab_size:
        raise ValueError(
            f"mask_token must be a token of the target, from 0 to {target.vocab_size - 1}, got {mask_token}"
        )
    capture = default_capture(target) if capture is None else capture
    counts = untrained.known_counts(target, None)
    ids = untrained.draft_vocabulary(target, draft_vocabulary, counts)
    one = layer_for(target, capture, len(ids))
    several = {"num_layers": num_layers, "ropes": one.config.ropes * num_layers, "windows": (None,) * num_layers}
    module = ParallelEagleLayers(dataclasses.replace(one.config, **several), one.features)
    blank = ParallelEagleHead(module, {}, None, None, target.vocab_size, capture, mask_token=mask_token)
    return start(blank, target, rng, ids, counts, dtype)
