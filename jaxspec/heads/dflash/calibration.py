"""Calibrates a confidence head: sequential temperature scaling (DSpark, section 3.2).

The product of the first `i` estimates should be how often the first `i` drafts are accepted. Each draft's log-odds are
divided by a number of its own, found one draft after the other with those before it fixed.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxspec.heads.dflash.blocks import Blocks, choose_anchors
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.batching import Batch
from jaxspec.training.losses import acceptance
from jaxspec.training.recipe import Features

_BINS = 20
_SCALES = np.geomspace(0.2, 5.0, 65)


def calibrate(head: DFlashHead, target: LanguageModel, batches: Iterable[Batch], seed: int = 0) -> DFlashHead:
    """Fits a head's `confidence_scale` to texts that it was not trained on.

    Acceptance is that of drafts drawn at temperature 1, of the text's own tokens before them.

    Args:
      head: one with a confidence head.
      target: the model that it drafts for.
      batches: of texts that the target wrote.
      seed: of the anchors that are chosen, one for eight tokens.

    Returns:
      The same head with the scale.

    Raises:
      ValueError: `head` has no confidence head, or the batches no answers as long as its blocks.
    """
    if head.config.confidence == "none":
        raise ValueError("calibrate needs a head with a confidence head, got one without; train with confidence=True")
    found = [np.zeros((3, 0, head.config.num_drafts))]
    for number, batch in enumerate(batches):
        outcome = _outcomes(head, target, batch, jax.random.fold_in(jax.random.key(seed), number))
        found.append(np.stack([np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in outcome]))
    odds, agreement, counts = np.concatenate(found, axis=1)
    counts = counts.astype(bool)
    if not counts.any(axis=0).all():
        raise ValueError("the batches hold no answers as long as a block; pass others")
    scale = sequential_scales(odds, np.cumprod(agreement, axis=1), counts)
    return dataclasses.replace(head, confidence_scale=jnp.asarray(scale, jnp.float32))


def sequential_scales(
    odds: Float[np.ndarray, "m k"], accepted: Float[np.ndarray, "m k"], counts: Bool[np.ndarray, "m k"]
) -> Float[np.ndarray, "k"]:
    """Finds what the log-odds of each draft are to be divided by.

    Args:
      odds: estimated log-odds of acceptance, given that the drafts before were accepted.
      accepted: whether all drafts up to this one were accepted, or the probability of it.
      counts: which of them are known.

    Returns:
      One positive number a draft.
    """
    found, before = [], np.ones(len(odds))
    for i in range(odds.shape[1]):
        chances = [before / (1 + np.exp(-odds[:, i] / scale)) for scale in _SCALES]
        errors = [calibration_error(chance[counts[:, i]], accepted[counts[:, i], i]) for chance in chances]
        best = int(np.argmin(errors))
        found.append(_SCALES[best])
        before = chances[best]
    return np.array(found)


def calibration_error(chance: Float[np.ndarray, "m"], happened: Float[np.ndarray, "m"]) -> float:
    """Returns the expected calibration error: how far chances are from frequencies, over 20 bins of equal width."""
    bins = np.minimum((chance * _BINS).astype(int), _BINS - 1)
    gap = np.bincount(bins, chance - happened, minlength=_BINS)
    return float(np.abs(gap).sum() / len(chance))


@jax.jit
def _outcomes(
    head: DFlashHead, target: LanguageModel, batch: Batch, key: Array
) -> tuple[Float[Array, "b a k"] | None, Float[Array, "b a k"], Bool[Array, "b a k"]]:
    """Returns estimated log-odds, the true probability of acceptance, and which drafts count."""
    capture = (*head.capture, target.module.config.num_layers)
    *hidden, last = target(batch.tokens, target.init_cache(batch.tokens.shape[0], 1), capture=capture).hidden
    anchors, chosen = choose_anchors(batch, max(batch.tokens.shape[1] // 8, 1), key)
    blocks = Blocks.of(head, target, batch, Features(tuple(hidden), last), anchors, chosen)
    coverage = blocks.log_coverage(head, target, drafts=head.config.num_drafts)
    accepted = acceptance(blocks.target_log_probs + coverage[..., None], blocks.draft_log_probs)
    return blocks.odds, accepted, blocks.counts
