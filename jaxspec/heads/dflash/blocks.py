"""Lays out blocks of drafts at many places of a text at once, with the target's distributions that they learn."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.matmul import project
from jaxspec.training.batching import Batch, at_places
from jaxspec.training.recipe import Features


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Holds the drafts of blocks that begin at `a` anchors of each text, all tokens before a draft being the text's.

    Attributes:
      draft_log_probs: the draft's distribution at each place, over the draft vocabulary.
      target_log_probs: the target's, renormalized over the same tokens.
      odds: the estimated log-odds of acceptance; `None` without a confidence head.
      counts: which drafts stand for tokens of an answer, after tokens that could all be drafted.
      states: the target's last states, from which its distributions come.
    """

    draft_log_probs: Float[Array, "b a k n"]
    target_log_probs: Float[Array, "b a k n"]
    odds: Float[Array, "b a k"] | None
    counts: Bool[Array, "b a k"]
    states: Float[Array, "b a k d"]

    @classmethod
    def of(
        cls,
        head: DFlashHead,
        target: LanguageModel,
        batch: Batch,
        features: Features,
        anchors: Int[Array, "b a"],
        chosen: Bool[Array, "b a"],
    ) -> Self:
        """Runs one pass over all blocks; those that are not `chosen` do not count.

        Args:
          head: the DFlash head.
          target: the model whose distributions it learns.
          batch: the texts.
          features: the target's pass over them, of the states that `head` captures.
          anchors: where blocks begin.
          chosen: which of them are meant.
        """
        drafts = head.config.num_drafts
        tokens, counts = _block_tokens(head, batch, anchors, chosen)
        context = head.context(features.hidden, jnp.zeros(anchors.shape[:1], jnp.int32))
        known = head.blocks(target.embed(tokens[..., 0]), anchors, context)
        split = lambda x: x.reshape(*counts.shape, *x.shape[2:])  # noqa: E731
        known = known.reshape(known.shape[0], -1, known.shape[-1])
        before = head.before(tokens[..., :-1].reshape(known.shape[:2]))
        draft_log_probs = jax.nn.log_softmax(head.logits(known) + head.added(before))
        at = jnp.minimum(_places(anchors, drafts), batch.tokens.shape[1] - 1).reshape(known.shape[:2])
        states = target.normalize(at_places(features.last, at))
        target_log_probs = jax.nn.log_softmax(project(states, head.params["head"]).astype(jnp.float32))
        odds = None if head.config.confidence == "none" else split(head.odds(known, before))
        return cls(split(draft_log_probs), split(target_log_probs), odds, counts, split(states))

    def log_coverage(self, head: DFlashHead, target: LanguageModel, drafts: int) -> Float[Array, "b a m"]:
        """Returns the log of the target's probability of the draft vocabulary, at each block's first `drafts`."""
        states = self.states[:, :, :drafts]
        if head.ids.shape[0] == target.vocab_size:
            return jnp.zeros(states.shape[:-1], jnp.float32)
        flat = states.reshape(states.shape[0], -1, states.shape[-1])
        total = lambda rows: jax.nn.logsumexp(project(flat, rows).astype(jnp.float32), axis=-1)  # noqa: E731
        return (total(head.params["head"]) - total(target.head)).reshape(states.shape[:-1])


def choose_anchors(batch: Batch, count: int, key: Array) -> tuple[Int[Array, "b a"], Bool[Array, "b a"]]:
    """Chooses `count` random places of each row, not the first, that an answer's token follows.

    Returns:
      The places, and which of them precede an answer's token: a row may have fewer than `count`.
    """
    width = batch.tokens.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)[None]
    fits = jnp.pad(batch.answer[:, 1:], ((0, 0), (0, 1))) & (index + 1 < batch.length[:, None]) & (index > 0)
    order = jnp.where(fits, jax.random.uniform(key, fits.shape), -1.0)
    anchors = jax.lax.top_k(order, min(count, width))[1].astype(jnp.int32)
    return anchors, at_places(fits, anchors)


def _places(anchors: Int[Array, "b a"], count: int) -> Int[Array, "b a n"]:
    """Returns each anchor's place and those after it, `count` in all."""
    return anchors[..., None] + jnp.arange(count, dtype=jnp.int32)[None, None]


def _block_tokens(
    head: DFlashHead, batch: Batch, anchors: Int[Array, "b a"], chosen: Bool[Array, "b a"]
) -> tuple[Int[Array, "b a k_plus_1"], Bool[Array, "b a k"]]:
    """Returns the text's tokens from each anchor on, one more than drafts, and which drafts count."""
    at = _places(anchors, head.config.num_drafts + 1)
    inside = at < batch.length[:, None, None]
    at = jnp.minimum(at, batch.tokens.shape[1] - 1)
    rows = jnp.arange(at.shape[0], dtype=jnp.int32)[:, None, None]
    tokens, answer = batch.tokens[rows, at], batch.answer[rows, at] & inside
    could = jnp.pad(head.places[tokens[..., 1:-1]] >= 0, ((0, 0), (0, 0), (1, 0)), constant_values=True)
    counts = jnp.cumprod((answer[..., 1:] & could).astype(jnp.int32), axis=-1).astype(jnp.bool_)
    return tokens, counts & chosen[..., None]
