"""Trains a DFlash head (DFlash, 2602.06036; DSpark, section 3.3).

Some places of each text are anchors, as if the text so far had just been committed:

    text       ...  a  b  c  d  e  f          c is an anchor
    context         A  B                      the target's states after a, b and all before
    block                 c  _  _             the block's tokens are masks, whatever the text says
    labels                d  e  f             the target's distributions of d, e, f: those after c, d, e
    before                c  d  e             the Markov head reads the text's own tokens

All blocks of a text run in one pass beside each other; each sees the context before its anchor, and itself
(`jaxspec.heads.dflash.blocks`).
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.core.files import read_json
from jaxspec.drafters.base import Drafter
from jaxspec.heads import untrained
from jaxspec.heads.dflash.blocks import Blocks, choose_anchors
from jaxspec.heads.dflash.calibration import calibrate
from jaxspec.heads.dflash.checkpoint import read_dflash, write_dflash
from jaxspec.heads.dflash.drafter import DFlashDrafter
from jaxspec.heads.dflash.head import DFlashHead, default_capture, init, network_for
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.losses import ForwardKL, acceptance, masked_mean
from jaxspec.training.recipe import Recipe, check_at_least, option


@dataclasses.dataclass(frozen=True)
class DFlashRecipe(Recipe):
    """Trains a DFlash head with DSpark's heads and losses, whose output head is the target's, frozen.

    A block costs about `6 * block_size * (parameters of the layers + rows of the head * width)` flops and its labels
    `2 * block_size * rows * width`; a token of the text `6 * (parameters of the mix and of keys and values)`, and the
    target's pass. For SmolLM2-135M and the defaults these are 520 and 66 million a block, and 11 and 220 a token.

    Departs from DSpark in this: the cross-entropy is that of the target's distribution and not of the text's token,
    which is less noisy; the distributions are compared over a draft vocabulary; the mask is a vector of its own;
    states are normalized before they are mixed.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.3.

    Example:
      >>> from jaxspec.heads.dflash import DFlashRecipe
      >>> DFlashRecipe.of(target, block_size=4).capture
      (2,)
    """

    capture: tuple[int, ...] = option("The target's states that it reads.")
    block_size: int = option("Drafts of a block.", default=7)
    draft_vocabulary: int | None = option(
        "How many tokens it may guess, the most frequent of the data; None is all of them.", default=8192
    )
    num_layers: int = option("Of the drafter.", default=2)
    mlp_width: int = option("Of its layers.", default=1024)
    markov_rank: int = option("Of its Markov head; 0 is none.", default=64)
    confidence: bool = option("Whether it has a confidence head.", default=True)
    anchor_every: int = option("One anchor for so many tokens of the padded text, all of them in answers.", default=8)
    decay: float = option("Draft i weighs exp(-i / decay).", default=4.0)
    cross_entropy: float = option("The weight of the cross-entropy with the target's distribution.", default=0.1)
    total_variation: float = option("The weight of the L1 distance, twice the total variation.", default=0.9)
    trust: float = option("The weight of the confidence head's loss.", default=1.0)
    k: int | None = option("Drafts a round where it is evaluated; by default the whole block.", default=None)

    def __post_init__(self):
        check_at_least(self, 1, "block_size", "draft_vocabulary", "num_layers", "mlp_width", "anchor_every", "k")
        check_at_least(self, 0, "markov_rank", "cross_entropy", "total_variation", "trust")
        if not self.decay > 0:
            raise ValueError(f"decay must be above 0, got {self.decay}")
        # Known before training, and not where it is measured.
        if self.k is not None and self.k > self.block_size:
            raise ValueError(f"k must be at most block_size, {self.block_size}, got {self.k}; pass a larger block_size")

    @classmethod
    def of(cls, target: LanguageModel, **options: Any) -> "DFlashRecipe":
        """Returns the recipe with DFlash's choice of layers for this target: four, evenly spaced."""
        options.setdefault("capture", default_capture(target))
        return cls(**options)

    def init(self, key, target, token_counts):
        options = {"draft_vocabulary": self.draft_vocabulary, "token_counts": token_counts, "dtype": jnp.float32}
        head = init(target, key, capture=self.capture, **self._sizes, **options)
        return {"network": {name: x for name, x in head.params.items() if name != "head"}, "ids": head.ids}

    def loss(self, params, target, batch, features, key):
        head = self.head(params, target)
        anchors, chosen = choose_anchors(batch, max(batch.tokens.shape[1] // self.anchor_every, 1), key)
        blocks = Blocks.of(head, target, batch, features, anchors, chosen)
        counts, agreement = blocks.counts, acceptance(blocks.target_log_probs, blocks.draft_log_probs)
        terms = self.cross_entropy * ForwardKL()(blocks.target_log_probs, blocks.draft_log_probs)
        terms += self.total_variation * 2 * (1 - agreement)
        reported = self._reported(agreement, counts)
        # The first draft's acceptance by the target's whole distribution, not only by its part in the draft vocabulary.
        coverage = blocks.log_coverage(head, target, drafts=1)[..., 0]
        first = acceptance(blocks.target_log_probs[..., 0, :] + coverage[..., None], blocks.draft_log_probs[..., 0, :])
        reported["acceptance"] = masked_mean(first, counts[..., 0])
        if blocks.odds is not None:
            label = jax.lax.stop_gradient(agreement)
            terms += self.trust * (jax.nn.softplus(blocks.odds) - label * blocks.odds)
            reported["confidence_error"] = masked_mean(jnp.abs(jax.nn.sigmoid(blocks.odds) - agreement), counts)
        weights = jnp.exp(-jnp.arange(self.block_size, dtype=jnp.float32) / self.decay)[None, None]
        weights = jnp.where(counts, weights, 0.0)
        loss = jnp.sum(jnp.where(counts, weights * terms, 0.0)) / jnp.maximum(jnp.sum(weights), 1.0)
        return loss, reported | {"count": jnp.sum(weights)}

    def drafter(self, params, target, token_counts) -> Drafter:
        return DFlashDrafter(self.head(params, target), k=self.k)

    def save(self, params, target, token_counts, path: str | os.PathLike[str]) -> None:
        write_dflash(self.head(params, target), Path(path), with_head=False)

    def measured(self, folder, target, batches, path) -> bool:
        """Writes the head again with the scales of its confidence head (`jaxspec.heads.dflash.calibration`)."""
        if self.confidence:
            head = read_dflash(Path(folder), read_json(Path(folder, "config.json")), target, target.dtype)
            write_dflash(calibrate(head, target, batches), path, with_head=False)
        return self.confidence

    def head(self, params: Any, target: LanguageModel) -> DFlashHead:
        """Returns the head of these parameters, with its rows of the target's output head."""
        network, ids = params["network"], params["ids"]
        dtype = network["mask"].dtype
        rows = {"head": target.head[ids].astype(dtype)}
        size = untrained.draft_vocabulary_size(target, self.draft_vocabulary)
        module = network_for(target, self.capture, size, **self._sizes, dtype=dtype)
        return DFlashHead.of(module, network | rows, ids, self.capture, target.vocab_size)

    def _reported(self, agreement: Float[Array, "b a k"], counts: Bool[Array, "b a k"]) -> dict[str, Float[Array, ""]]:
        """Returns each draft's mean acceptance, and how many tokens a round would emit."""
        places = range(1, self.block_size)
        reported = {f"acceptance_{i + 1}": masked_mean(agreement[..., i], counts[..., i]) for i in places}
        reach = jnp.cumprod(jnp.where(counts, agreement, 0.0), axis=-1)
        return reported | {"length": 1 + masked_mean(jnp.sum(reach, axis=-1), counts[..., 0])}

    @property
    def _sizes(self) -> dict[str, Any]:
        """The options of the network."""
        names = ("block_size", "num_layers", "mlp_width", "markov_rank", "confidence")
        return {name: getattr(self, name) for name in names}
