"""Drafts with P-EAGLE: one pass over the pairs that wait and a mask for each further draft.

The drafts of a round do not see each other: each is drawn from its own place's logits, which one pass brings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core.model import ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context
from jaxspec.drafters.draft_model import Hidden, Window
from jaxspec.heads.eagle.drafter import EagleDraft, EagleState
from jaxspec.heads.eagle.parallel import ParallelEagleHead
from jaxspec.nn.cache import KVEntries


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelEagleDraft(EagleDraft):
    """Draws chains, and trees of up to `k` tokens along a path, from the logits of one pass."""

    head: ParallelEagleHead

    @property
    def _room(self) -> int:
        # Those of one round: what waits is read by the pass that drafts, or by one in its place.
        return self._chunk

    def blank(self, batch: int) -> Hidden:
        # The logits of the drafts that are left, each its own array: on a mesh none of them moves.
        return (jnp.zeros((batch, self.draft_vocab_size), jnp.float32),) * max(self.k - 1, 1)

    def first(self, state: EagleState, context: Context) -> tuple[Window, EagleState]:
        head, cache, chunk = self.head, state.cache, self._chunk
        waiting = jnp.where(context.done, 0, state.waiting)
        width = chunk + self.k - 1
        place = jnp.arange(width, dtype=jnp.int32)[None]
        at = jnp.minimum(cache.length[:, None] + 1 + place, context.tokens.shape[1] - 1)
        true = place < waiting[:, None]
        tokens = jnp.where(true, jnp.take_along_axis(context.tokens, at, axis=1), jnp.int32(head.mask_token))
        features = jnp.pad(state.features, ((0, 0), (0, self.k - 1), (0, 0)))
        features = jnp.where(true[..., None], features, head.mask()[None, None])
        states, entries = head(head.embed(context.target, tokens), head.fuse(features), cache)
        own = jnp.maximum(waiting - 1, 0)[:, None] + jnp.arange(max(self.k, 2), dtype=jnp.int32)[None]
        logits = head.guesses(jnp.take_along_axis(states, jnp.minimum(own, width - 1)[..., None], axis=1))
        fed = jax.tree.map(lambda x: x[:, :, :, :chunk], entries)
        cache = cache.append(fed).truncate(cache.length + waiting)
        shape = jax.tree.map(lambda x: x[:, :, :, :2], fed)
        after = EagleState(cache, state.state, state.features, state.waiting - waiting)
        return Window(logits[:, 0], cache, shape, tuple(jnp.unstack(logits[:, 1:], axis=1))), after

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        batch, time = tokens.shape
        layers, _, heads, _, width = cache.keys.shape
        # What stands behind the text is never read: no draft sees another.
        nothing = jnp.zeros((layers, batch, heads, time, width), self.head.dtype)
        return ModelOutput(hidden[0], KVEntries(nothing, nothing), (*hidden[1:], hidden[-1]))
