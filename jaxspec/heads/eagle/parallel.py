"""Drafts with P-EAGLE (2602.01469, section 3): all drafts of a round in one pass of an EAGLE-3 head.

    text       a  b  c  d           d is committed and unfed: the target's states end with c's
    pairs      ab bc cd             a state of the target, and the token after it
    pass       cd *m *m             pairs that were not fed yet; then masks, a trained state and a token of no meaning
    predicts   x  y  z              the token after each; masks leave nothing in the cache

A mask sees the pairs and the masks before it. Each draft is drawn from the logits at its position, which do not depend
on the drafts before it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.draft_model import Draft, Hidden, Window
from jaxspec.heads.eagle.head import EagleDraft, EagleHead, EagleState, paired
from jaxspec.nn.cache import KVEntries


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelEagleHead(EagleHead):
    """Applies P-EAGLE's layers: an `EagleHead` that guesses several tokens in one pass.

    Attributes:
      mask_token: the token whose embedding masks have.

    References:
      P-EAGLE (2026), arXiv:2602.01469.
    """

    mask_token: int = dataclasses.field(default=0, metadata={"static": True})

    def mask(self) -> Float[Array, "f"]:
        """Returns the trained features of a mask, as wide as the target's captured states together."""
        return self._apply(method="mask")

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        """Returns the costs of its drafts: one pass for all of them."""
        return model.one_pass(self, k)

    def as_draft(self, k: int) -> Draft:
        return ParallelEagleDraft(self, k)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelEagleDraft(EagleDraft):
    """Drafts chains, and trees of up to `k` tokens along a path, from the logits of one pass."""

    head: ParallelEagleHead

    @property
    def _room(self) -> int:
        # The pass that drafts reads all waiting pairs, so that only those of one round wait.
        return self._chunk

    def blank(self, batch: int) -> Hidden:
        # The logits of the remaining drafts, each in a separate array, so that none moves on a mesh.
        return (jnp.zeros((batch, self.vocabulary.count), jnp.float32),) * max(self.k - 1, 1)

    def first(self, state: EagleState, context: Context) -> tuple[Window, EagleState]:
        head, cache, chunk = self.head, state.cache, self._chunk
        waiting = jnp.where(context.done, 0, state.waiting)
        width = chunk + self.k - 1
        place = jnp.arange(width, dtype=jnp.int32)[None]
        true = place < waiting[:, None]
        tokens = jnp.where(true, paired(context, waiting, width), jnp.int32(head.mask_token))
        features = jnp.pad(state.features, ((0, 0), (0, self.k - 1), (0, 0)))
        features = jnp.where(true[..., None], features, head.mask()[None, None])
        states, entries = head(head.embed(context.target, tokens), head.fuse(features), cache)
        own = jnp.maximum(waiting - 1, 0)[:, None] + jnp.arange(max(self.k, 2), dtype=jnp.int32)[None]
        logits = head.guesses(jnp.take_along_axis(states, jnp.minimum(own, width - 1)[..., None], axis=1))
        fed = jax.tree.map(lambda x: x[:, :, :, :chunk], entries)
        cache = cache.append(fed).truncate(cache.length + waiting)
        shape = jax.tree.map(lambda x: x[:, :, :, :2], fed)
        after = dataclasses.replace(state, cache=cache, waiting=state.waiting - waiting)
        return Window(logits[:, 0], cache, shape, tuple(jnp.unstack(logits[:, 1:], axis=1))), after

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        batch, time = tokens.shape
        layers, _, heads, _, width = cache.keys.shape
        # Entries after the text are never read, as no draft sees another.
        nothing = jnp.zeros((layers, batch, heads, time, width), self.head.dtype)
        return ModelOutput(hidden[0], KVEntries(nothing, nothing), (*hidden[1:], hidden[-1]))
